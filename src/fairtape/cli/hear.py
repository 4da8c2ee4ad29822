"""`fairtape hear`: a customer of the edge; prints the ticker, and everything that is not as it should be."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from fairtape.cli.journal import format_instant
from fairtape.cli.terminal import check_within
from fairtape.core.addresses import Address, parse_address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.deployment.config.description import FILE, Deployment, interface_at, read_deployment
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.edge import edge_names, edge_of, stripe_plans_of
from fairtape.deployment.status_files import RunFolder
from fairtape.edge.protocol.customer import CustomerOptions
from fairtape.edge.protocol.customer_records import Delivered, Record
from fairtape.edge.protocol.session_marks import MARK, OPAQUE, BadMark, decode_opaque
from fairtape.edge.protocol.sessions import Session
from fairtape.edge.service.session_readers import SessionReaders
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.edge.service.subscriber import MulticastSubscriber, feeds_of
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker import CanceledPrint, PrintedTrade
from fairtape.market.prices import format_fixed
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK

EXIT_MISSED: Final = 1
SECONDS_MAX: Final = 1e9
PATIENCE_MS: Final = 50


@dataclass(frozen=True, slots=True)
class EdgeTarget:
    """What there is to hear, and whom to ask."""

    tag: str
    plan: StripePlan
    plans: Callable[[int], StripePlan | None]
    servers: tuple[Address, ...]
    interface: str


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--stripe", "stripes", type=int, multiple=True, help="An edge stripe, by its number.  [default: all]")
@click.option("--feeds", default="", metavar="A,B", help="The feeds to hear.  [default: all of the plan]")
@click.option(
    "--grade", type=click.Choice(["guaranteed", "best-effort"]), default="best-effort", show_default=True,
    help="Ask until nothing is missing, or give up after --patience-ms.",
)  # fmt: skip
@click.option("--patience-ms", default=PATIENCE_MS, show_default=True, help="With what is missing, of best effort.")
@click.option("--from", "begin", type=int, help="Begin each stripe with this number.  [default: what comes next]")
@click.option("--session", help="With --from: the session that the number belongs to, as it was printed.")
@click.option("--tag", help="Of a plan file: the deployment's tag at the edge.")
@click.option(
    "--server", "servers", multiple=True, metavar="HOST:PORT", help="Of a plan file: whom to ask for repairs."
)
@click.option("--interface", help="A name or an address of this machine.  [default: loopback, or as the sites have it]")
@click.option("--trades", type=int, help="End after so many trades.")
@click.option("--seconds", type=float, help="End after so long.  [default: at Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def hear(
    ctx: click.Context,
    *,
    target: Path,
    stripes: tuple[int, ...],
    feeds: str,
    grade: str,
    patience_ms: int,
    begin: int | None,
    session: str | None,
    tag: str | None,
    servers: tuple[str, ...],
    interface: str | None,
    trades: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Hear the ticker as a customer does.

    TARGET is a deployment, or the file of a stripe plan. Each message is kept from whichever feed brings it first; what
    is missing is asked for at the retransmit servers. Gaps, silent feeds, reformations, Breaks and changes of plan are
    lines of their own.

    The exit code is 1 when messages were missed for good.
    """
    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    check_within("--patience-ms", patience_ms, 1, 3_600_000)
    check_within("--trades", trades, 1, 1 << 62)
    check_within("--from", begin, 1, 1 << 62)
    found = _target(target, tag, servers, interface)
    name = _session(session, begin)
    ear = _ear(found, feeds, grade, patience_ms, stripes)
    plan = found.plan if name is None else _plan_of(name, found)
    chosen = _stripes(plan, stripes)
    starts = None if begin is None else dict.fromkeys(chosen, begin)
    printer = Printer(found.plans, as_json=as_json)
    ends_at = time.monotonic() + (seconds or SECONDS_MAX)
    try:
        with Interrupts() as interrupts:
            ear.follow(plan, starts=starts, breaks=0 if name is None else name.breaks)
            click.echo(f"hears {len(chosen)} stripes of plan {plan.version}", err=True)
            while not interrupts.count and time.monotonic() < ends_at and (trades is None or printer.trades < trades):
                for line in printer.lines(ear.turn()):
                    sys.stdout.write(line)
                sys.stdout.flush()
    finally:
        ear.close()
    counts = ear.customer.counts
    click.echo(f"{printer.trades:,} trades, {counts.missing:,} missing, {counts.requests:,} requests", err=True)
    ctx.exit(EXIT_MISSED if counts.missing else 0)


def _ear(found: EdgeTarget, feeds: str, grade: str, patience_ms: int, stripes: tuple[int, ...]) -> MulticastSubscriber:
    if grade == "guaranteed" and not found.servers:
        raise UserError("--grade is guaranteed, and there is nobody to ask; name a retransmit server with --server")
    patience = None if grade == "guaranteed" else patience_ms * MILLISECOND
    return MulticastSubscriber(
        found.tag,
        feeds=feeds_of(found.plan, [each for each in feeds.split(",") if each]),
        servers=found.servers,
        interface=found.interface,
        clock=SharedClock(),
        options=CustomerOptions(patience=patience),
        plans=found.plans,
        wanted=stripes,
    )


class Printer:
    """Records as lines."""

    def __init__(self, plans: Callable[[int], StripePlan | None], *, as_json: bool) -> None:
        self.trades = 0
        self._as_json = as_json
        self._readers = SessionReaders(plans)

    def lines(self, records: list[Record]) -> Iterator[str]:
        """What there is to print."""
        for record in records:
            if isinstance(record, Delivered):
                for number, message in enumerate(record.messages, record.first):
                    fields = self._message(record, number, message)
                    if fields is not None:
                        yield self._line(fields)
            else:
                yield self._line({"kind": type(record).__name__.lower(), **asdict(record)})

    def _message(self, record: Delivered, number: int, message: bytes) -> dict[str, Any] | None:
        place = {"stripe": record.stripe, "session": record.session, "number": number}
        if message[:1] == MARK:
            return None
        try:
            if message[:1] == OPAQUE:
                opaque = decode_opaque(message)
                self.trades += opaque.part + 1 == opaque.parts
                return {"kind": "opaque", **place, "sequence": opaque.sequence, "payload": opaque.payload.hex()}
            told = self._readers.of(record.session).read(message)
        except (BadItch, BadMark) as error:
            return {"kind": "unread", **place, "why": str(error)}
        if isinstance(told, CanceledPrint):
            return {"kind": "canceled", **place, "sequence": told.number}
        if not isinstance(told, PrintedTrade):
            return None
        self.trades += 1
        trade = told.trade
        return {
            "kind": "trade",
            **place,
            "sequence": told.number,
            "venue": trade.venue_name,
            "symbol": trade.symbol,
            "price": format_fixed(trade.price),
            "quantity": format_fixed(trade.quantity),
            "traded_at_ns": trade.traded_at,
            "trade_id": trade.trade_id,
        }

    def _line(self, fields: dict[str, Any]) -> str:
        if self._as_json:
            return json.dumps(fields, separators=(",", ":")) + "\n"
        if fields["kind"] == "trade":
            return (
                f"{fields['sequence']:>9}  {format_instant(fields['traded_at_ns'])}  {fields['stripe']:>4}"
                f" {fields['number']:>9}  {fields['venue']:<12} {fields['symbol']:<16}"
                f" {fields['price']:>14} {fields['quantity']:>14}\n"
            )
        kind = fields.pop("kind")
        return f"{'-':>9}  {kind.upper()}  " + ", ".join(f"{name} {value}" for name, value in fields.items()) + "\n"


def _target(target: Path, tag: str | None, servers: tuple[str, ...], interface: str | None) -> EdgeTarget:
    named = tuple(parse_address("--server", text) for text in servers)
    if (target / FILE).exists():
        for option, given in (("--tag", tag), ("--server", servers)):
            if given:
                raise UserError(
                    f"{option} is given, and {target / FILE} says what its deployment is like; leave it out"
                )
        return _deployed(read_deployment(target), interface)
    if target.is_dir():
        raise UserError(f"TARGET is {str(target)!r}, which holds no deployment; make one with: fairtape init {target}")
    if tag is None:
        raise UserError("TARGET is a plan file, which does not say whose it is; name the deployment's tag with --tag")
    plan = read_plan(target)

    def later(version: int) -> StripePlan | None:
        if version == plan.version:
            return plan
        beside = sorted(target.parent.glob(f"*{target.suffix}"))
        found = (each for each in map(_plan_or_none, beside) if each is not None)
        return next((each for each in found if each.version == version), None)

    return EdgeTarget(tag, plan, later, named, interface or LOOPBACK)


def _deployed(deployment: Deployment, interface: str | None) -> EdgeTarget:
    settings = edge_of(deployment)
    catalogue = stripe_plans_of(deployment)

    def later(version: int) -> StripePlan | None:
        return _plan_or_none(catalogue.path(version))

    statuses = RunFolder(deployment.folder).statuses([*settings.stations, *edge_names(deployment)])
    pages = [page.get("edge") or page for page in statuses.values()]
    version = max((page.get("plan") or 0 for page in pages), default=0) or settings.first_plan
    plan = later(version) if version else None
    if plan is None:
        raise UserError(f"no plan is in force in {deployment.folder}; order one with: fairtape operate")
    servers = tuple(place.requests for place in settings.stations.values())
    host = deployment.nodes[next(iter(settings.stations))].host
    return EdgeTarget(settings.tag, plan, later, servers, interface or interface_at(host))


def _plan_or_none(path: Path) -> StripePlan | None:
    """A plan that is not there yet, or is no plan, is waited for."""
    try:
        return read_plan(path)
    except UserError:
        return None


def _session(text: str | None, begin: int | None) -> Session | None:
    if text is None:
        return None
    name = Session.parse(text)
    if name is None or begin is None:
        raise UserError(f"--session is {text!r}; expected ten letters and digits as they were printed, and --from")
    return name


def _plan_of(name: Session, found: EdgeTarget) -> StripePlan:
    plan = found.plans(name.version)
    if plan is None:
        raise UserError(f"--session is {str(name)!r}, of plan {name.version}, which is not here; add its file")
    return plan


def _stripes(plan: StripePlan, wanted: tuple[int, ...]) -> list[int]:
    for number in wanted:
        if number not in plan.stripes:
            known = ", ".join(map(str, plan.stripes))
            raise UserError(f"--stripe is {number}; plan {plan.version} has {known}")
    return list(wanted or plan.stripes)
