"""`fairtape hear`: a customer of the edge; prints trades, gaps, reformations and plan changes."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import check_within, format_instant
from fairtape.core.addresses import Address, parse_address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.edge.protocol.sessions import MARK, OPAQUE, BadMark, decode_opaque
from fairtape.formats.itch.messages import BadItch
from fairtape.market.prices import format_fixed
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from fairtape.core.addresses import Address
    from fairtape.deployment.config.description import Deployment
    from fairtape.edge.protocol.customer import Delivered, StripeRecord
    from fairtape.edge.protocol.sessions import SessionName
    from fairtape.edge.service.subscriber import MulticastSubscriber
    from fairtape.market.stripes import StripePlan

EXIT_MISSED: Final = 1
SECONDS_MAX: Final = 1e9
PATIENCE_MS: Final = 50

_KINDS: Final = {  # of the printed lines, by the class of the record; the classes are imported when the command runs
    "StripeGap": "gap",
    "StripeReformation": "reformation",
    "StripeBreak": "break",
    "PlanChange": "planchange",
    "Ended": "ended",
    "Silent": "silent",
    "Heard": "heard",
    "StripeStale": "stale",
    "StripeFresh": "fresh",
}


@dataclass(frozen=True, slots=True)
class EdgeTarget:
    """A stripe plan, and the retransmit servers for it."""

    tag: str
    plan: "StripePlan"
    plans: Callable[[int], "StripePlan | None"]
    servers: tuple["Address", ...]
    interface: str


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--stripe", "stripes", type=int, multiple=True, help="Number of an edge stripe; may be repeated.  [default: all]"
)
@click.option("--feeds", default="", metavar="A,B", help="Feeds to receive.  [default: all of the plan]")
@click.option(
    "--grade", type=click.Choice(["guaranteed", "best-effort"]), default="best-effort", show_default=True,
    help="Request until nothing is missing, or give up after --patience-ms.",
)  # fmt: skip
@click.option(
    "--patience-ms",
    default=PATIENCE_MS,
    show_default=True,
    help="With best-effort: wait this long for what is missing.",
)
@click.option("--from", "begin", type=int, help="Begin each stripe with this number.  [default: the next one]")
@click.option("--session", help="With --from: the session that the number belongs to, as it was printed.")
@click.option("--tag", help="With a plan file: the deployment's tag at the edge.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="HOST:PORT",
    help="With a plan file: a retransmit server; may be repeated.",
)
@click.option("--interface", help="Network interface, by name or address.  [default: loopback, or that of the sites]")
@click.option("--trades", type=int, metavar="N", help="Stop after N trades.")
@click.option("--seconds", type=float, help="Stop after this time.  [default: at Ctrl-C]")
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
    """Receive the multicast stripes as a customer.

    TARGET is a deployment with an edge (`fairtape init --edge`), or the file of a stripe plan. The first copy of each
    message is used, from either feed; what is missing is requested from the retransmit servers. Gaps, silent feeds,
    reformations, Breaks and plan changes are separate lines.

    The exit code is 1 if messages are missing at the end.
    """
    from fairtape.deployment.process.children import Interrupts

    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    check_within("--patience-ms", patience_ms, 1, 3_600_000)
    check_within("--trades", trades, 1, 1 << 62)
    check_within("--from", begin, 1, 1 << 62)
    found = _target(target, tag, servers, interface)
    name = _session(session, begin)
    subscriber = _subscriber(found, feeds, grade, patience_ms, stripes)
    plan = found.plan if name is None else _plan_of(name, found)
    chosen = _stripes(plan, stripes)
    starts = None if begin is None else dict.fromkeys(chosen, begin)
    printer = Printer(found.plans, as_json=as_json)
    ends_at = time.monotonic() + (seconds or SECONDS_MAX)
    try:
        with Interrupts() as interrupts:
            subscriber.follow(plan, starts=starts, breaks=0 if name is None else name.breaks)
            click.echo(f"receiving {len(chosen)} stripes of plan {plan.version}", err=True)
            while not interrupts.count and time.monotonic() < ends_at and (trades is None or printer.trades < trades):
                for line in printer.lines(subscriber.run_once()):
                    sys.stdout.write(line)
                sys.stdout.flush()
    finally:
        subscriber.close()
    counts = subscriber.customer.counts
    click.echo(f"{printer.trades:,} trades, {counts.missing:,} missing, {counts.requests:,} requests", err=True)
    ctx.exit(EXIT_MISSED if counts.missing else 0)


def _subscriber(
    found: EdgeTarget, feeds: str, grade: str, patience_ms: int, stripes: tuple[int, ...]
) -> "MulticastSubscriber":
    from fairtape.edge.protocol.customer import CustomerOptions
    from fairtape.edge.service.subscriber import MulticastSubscriber, chosen_feeds

    if grade == "guaranteed" and not found.servers:
        raise UserError("--grade is guaranteed, which needs a retransmit server; name one with --server")
    patience = None if grade == "guaranteed" else patience_ms * MILLISECOND
    return MulticastSubscriber(
        found.tag,
        feeds=chosen_feeds(found.plan, [each for each in feeds.split(",") if each]),
        servers=found.servers,
        interface=found.interface,
        clock=SharedClock(),
        options=CustomerOptions(patience=patience),
        plans=found.plans,
        wanted=stripes,
    )


class Printer:
    """Formats records as lines."""

    def __init__(self, plans: Callable[[int], "StripePlan | None"], *, as_json: bool) -> None:
        from fairtape.edge.protocol.itch_codec import SessionReaders

        self.trades = 0
        self._as_json = as_json
        self._readers = SessionReaders(plans)

    def lines(self, records: "list[StripeRecord]") -> Iterator[str]:
        from fairtape.edge.protocol.customer import Delivered

        for record in records:
            if isinstance(record, Delivered):
                for number, message in enumerate(record.messages, record.first):
                    fields = self._message(record, number, message)
                    if fields is not None:
                        yield self._line(fields)
            else:
                yield self._line({"kind": _KINDS[type(record).__name__], **asdict(record)})

    def _message(self, record: "Delivered", number: int, message: bytes) -> dict[str, Any] | None:
        from fairtape.formats.itch.ticker_messages import CanceledPrint, PrintedTrade

        place = {"stripe": record.stripe, "session": record.session, "number": number}
        if message[:1] == MARK:
            return None
        try:
            if message[:1] == OPAQUE:
                opaque = decode_opaque(message)
                self.trades += opaque.part + 1 == opaque.parts
                return {"kind": "opaque", **place, "sequence": opaque.sequence, "payload": opaque.payload.hex()}
            content = self._readers.of(record.session).read(message)
        except (BadItch, BadMark) as error:
            return {"kind": "unread", **place, "why": str(error)}
        if isinstance(content, CanceledPrint):
            return {"kind": "canceled", **place, "sequence": content.number}
        if not isinstance(content, PrintedTrade):
            return None
        self.trades += 1
        trade = content.trade
        return {
            "kind": "trade",
            **place,
            "sequence": content.number,
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
    from fairtape.deployment.config.description import FILE, read_deployment
    from fairtape.edge.service.stripe_plans import read_plan
    from fairtape.net.transports import LOOPBACK

    named = tuple(parse_address("--server", text) for text in servers)
    if (target / FILE).exists():
        for option, given in (("--tag", tag), ("--server", servers)):
            if given:
                raise UserError(f"{option} is given, and {target / FILE} has this setting; leave the option out")
        return _deployed(read_deployment(target), interface)
    if target.is_dir():
        raise UserError(
            f"TARGET is {str(target)!r}, which is not a deployment; make one with: fairtape init {target} --edge 4"
        )
    if tag is None:
        raise UserError(
            "TARGET is a plan file, which does not name its deployment; give the deployment's tag with --tag"
        )
    plan = read_plan(target)

    def later(version: int) -> "StripePlan | None":
        if version == plan.version:
            return plan
        beside = sorted(target.parent.glob(f"*{target.suffix}"))
        found = (each for each in map(_plan_or_none, beside) if each is not None)
        return next((each for each in found if each.version == version), None)

    return EdgeTarget(tag, plan, later, named, interface or LOOPBACK)


def _deployed(deployment: "Deployment", interface: str | None) -> EdgeTarget:
    from fairtape.deployment.config.process_names import edge_names
    from fairtape.deployment.process.edge import edge_of, stripe_plans_of
    from fairtape.deployment.status import EdgeStatus, SiteStatus
    from fairtape.deployment.status_files import RunFolder
    from fairtape.net.transports import interface_at

    settings = edge_of(deployment)
    plans = stripe_plans_of(deployment)

    def later(version: int) -> "StripePlan | None":
        return _plan_or_none(plans.path(version))

    run = RunFolder(deployment.folder)
    publishers = [site.edge for site in run.statuses_of(SiteStatus, list(settings.publishers)).values()]
    servers_here = [edge.server for edge in run.statuses_of(EdgeStatus, edge_names(deployment)).values()]
    versions = [each.plan or 0 for each in (*publishers, *servers_here) if each is not None]
    version = max(versions, default=0) or settings.first_plan
    plan = later(version) if version else None
    if plan is None:
        raise UserError(
            f"no stripe plan is in force in {deployment.folder}; set one with: fairtape operate … plan FILE"
        )
    servers = tuple(place.requests for place in settings.publishers.values())
    host = deployment.nodes[next(iter(settings.publishers))].host
    return EdgeTarget(settings.tag, plan, later, servers, interface or interface_at(host))


def _plan_or_none(path: Path) -> "StripePlan | None":
    """None if the file is missing or is not a plan: it may still be copied."""
    from fairtape.edge.service.stripe_plans import read_plan

    try:
        return read_plan(path)
    except UserError:
        return None


def _session(text: str | None, begin: int | None) -> "SessionName | None":
    from fairtape.edge.protocol.sessions import SessionName

    if text is None:
        return None
    name = SessionName.parse(text)
    if name is None or begin is None:
        raise UserError(f"--session is {text!r}; expected ten letters and digits as printed, and --from")
    return name


def _plan_of(name: "SessionName", found: EdgeTarget) -> "StripePlan":
    plan = found.plans(name.version)
    if plan is None:
        raise UserError(f"--session is {str(name)!r}, of plan {name.version}, which is missing here; add its file")
    return plan


def _stripes(plan: "StripePlan", wanted: tuple[int, ...]) -> list[int]:
    for number in wanted:
        if number not in plan.stripes:
            known = ", ".join(map(str, plan.stripes))
            raise UserError(f"--stripe is {number}; plan {plan.version} has {known}")
    return list(wanted or plan.stripes)
