"""The options of a replay: whose port, which plan, and what of it.

A replay port carries sessions of edge stripes, and says neither which stripes there are nor which day it is: both stand
in the stripe plan, which customers have anyway. Plans that take over later are looked for beside the one that is named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fairtape.core.errors import UserError
from fairtape.edge.protocol.sessions import DEPLOYMENT_MAX
from fairtape.edge.service.stripe_plans import plan_beside, read_plan
from fairtape.formats import soupbintcp as soup
from fairtape.market.stripes import EDGE_MAX, PORT_MAX, StripePlan
from fairtape.pipeline.source.options import BATCH_ROWS_MAX, listed, number_in, symbol_of
from fairtape.pipeline.source.replay_client import ReplayClient
from fairtape.wire.frames import NUMBER_MAX

ReplayRows = Literal["messages", "trades"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySourceOptions:
    """What to read of a replay port. All messages of all stripes of the plan where nothing else is said."""

    replay: ReplayClient
    plan: Path
    rows: ReplayRows = "messages"
    stripes: tuple[int, ...] | None = None  # of the edge
    symbols: tuple[str, ...] | None = None  # only trades of these
    max_rows: int = BATCH_ROWS_MAX  # of one micro-batch
    tag: str | None = None  # the deployment in the names of sessions; None: the server is asked

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "ReplaySourceOptions":
        """The options that a user of Spark wrote."""
        given = {name.lower(): text for name, text in texts.items()}
        if unknown := sorted(set(given) - set(_READERS) - set(_LOGIN)):
            known = ", ".join((*_READERS, *_LOGIN))
            raise UserError(f"option {unknown[0]!r} is unknown for a replay; it has {known}")
        if "plan" not in given:
            raise UserError(
                "plan is missing; name the file of the stripe plan, which says the stripes and the day: "
                ".option('plan', 'plans/00001.toml')"
            )
        login = {name: given[name] for name in _LOGIN if name in given}
        address = _address("replay", given["replay"])
        chosen = {name: read(name, given[name]) for name, read in _READERS.items() if name in given}
        options = cls(**chosen | {"replay": ReplayClient(address=address, **login)})
        options.check()
        return options

    def check(self) -> None:
        """Refuse what no server can be asked."""
        try:
            soup.LoginRequest(self.replay.user, self.replay.password)
        except soup.BadSoup as refusal:
            raise UserError(f"user or password cannot be sent: {refusal}") from None
        plan = read_plan(self.plan)
        for number in self.stripes or ():
            if number not in plan.stripes:
                raise UserError(f"stripes names {number}; plan {plan.version} has {', '.join(map(str, plan.stripes))}")

    def plan_of(self, version: int) -> StripePlan | None:
        """The plan of this version: the one that is named, or one beside it."""
        return plan_beside(self.plan, version)

    def stripes_of(self, plan: StripePlan) -> list[int]:
        """The stripes of a plan that are wanted."""
        return [number for number in plan.stripes if self.stripes is None or number in self.stripes]


def _address(name: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
        raise UserError(f"{name} is {text!r}; give the replay port of a retransmit server, such as 10.0.0.7:17001")
    return host, int(port)


def _rows(name: str, text: str) -> str:
    if text not in get_args(ReplayRows):
        raise UserError(f"{name} is {text!r}; of a replay it must be one of {', '.join(get_args(ReplayRows))}")
    return text


def _tag(name: str, text: str) -> str:
    if not 1 <= len(text) <= DEPLOYMENT_MAX or not (text.isascii() and text.isalnum()):
        raise UserError(f"{name} is {text!r}; the tag of a deployment has 1 or 2 letters and digits, such as FT")
    return text


_LOGIN: Final = ("user", "password")
_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "replay": _address,
    "plan": lambda _, text: Path(text).absolute(),
    "rows": _rows,
    "stripes": lambda name, text: listed(name, text, number_in(1, EDGE_MAX)),
    "symbols": lambda name, text: listed(name, text, symbol_of),
    "max_rows": number_in(1, NUMBER_MAX),
    "tag": _tag,
}
