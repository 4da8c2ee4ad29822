"""Which sessions a replay reads, and how far: the offsets of a replay, as `lanes` has those of journals.

An offset is, for each session, the number of its message that is due. A session ends with a mark that names the plan
and the Breaks of the one that takes over (`fairtape.edge.protocol.session_marks`), so whoever has read one to its end
knows where to go on, and that nothing lies between. Sessions that are over stay in the offsets: they say that what
followed them is known.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from fairtape.core.errors import UserError
from fairtape.edge.protocol.archive import SESSIONS_MAX
from fairtape.edge.protocol.session_marks import MARK, Over, decode_mark
from fairtape.edge.protocol.sessions import Session, in_base_36
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.pipeline.source.replay_options import ReplaySourceOptions

RANGE_ROWS_MAX: Final = 1 << 18  # of one task; a server sends so many in a second or two


class Reached(NamedTuple):
    """How far a session was read: the number due next, and whether the session was over before it."""

    next: int = 1
    over: bool = False


class SessionRange(NamedTuple):
    """Consecutive numbers of one session."""

    session: str
    first: int
    last: int


Offsets = dict[str, Reached]


def offsets_to_json(offsets: Mapping[str, Reached]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark keeps them in a checkpoint."""
    return {name: reached._asdict() for name, reached in sorted(offsets.items())}


def offsets_from_json(kept: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets from a checkpoint."""
    return {name: Reached(int(each["next"]), bool(each["over"])) for name, each in kept.items()}


class Sessions:
    """All sessions that a job reads."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options
        self._replay = options.replay
        self._settles = False
        self._target: Offsets | None = None

    def start(self) -> Offsets:
        """The first message of every session of the plan."""
        plan = read_plan(self._options.plan)
        stripes = self._options.stripes_of(plan)
        tag = self._options.tag or self._tag(stripes[0])
        return {str(Session(tag, plan.version, 0, stripe)): Reached() for stripe in stripes}

    def settle(self) -> None:
        """Read no further than to what is there when somebody asks first (the trigger `availableNow`)."""
        self._settles, self._target = True, None

    def latest(self, start: Offsets, rows_max: int | None = None) -> Offsets:
        """How far all sessions can be read, together at most `rows_max` messages beyond `start`."""
        if self._settles and self._target is None:
            self._target = self.everything(start)
        ends = self._ends(start) if self._target is None else self._target
        reached: Offsets = {}
        left = rows_max
        for name, end in ends.items():
            begin = start.get(name, Reached())
            cut = left is not None and end.next - begin.next > left
            reached[name] = Reached(begin.next + left) if cut and left is not None else end
            if left is not None:
                left -= reached[name].next - begin.next
        return reached

    def everything(self, start: Offsets) -> Offsets:
        """The end of all that is there now, through all sessions that followed one another."""
        ends = self._ends(start)
        while (further := self._ends(ends)).keys() != ends.keys():
            ends = further
        return further

    def ranges(self, start: Offsets, end: Offsets) -> Iterator[SessionRange]:
        """What lies between, in pieces that can be read in parallel."""
        for name, reached in end.items():
            for first in range(start.get(name, Reached()).next, reached.next, RANGE_ROWS_MAX):
                yield SessionRange(name, first, min(first + RANGE_ROWS_MAX, reached.next) - 1)

    def _ends(self, start: Offsets) -> Offsets:
        """The end of each session that is known, and the beginning of those that take over."""
        ends = dict(start)
        for name, begin in start.items():
            if begin.over:
                continue
            following = self._replay.following(name)
            if following is None:
                raise UserError(
                    f"replay {self._replay} knows no session {name}; it reads its journal still, or serves another "
                    "deployment than that of the plan. Try again, or name tag and plan of this one"
                )
            if following <= begin.next:
                continue  # nothing new; a server that was started again may be some way behind
            mark = self._last(name, following - 1)
            ends[name] = Reached(following, over=mark is not None)
            if mark is not None and mark.version:
                self._take_over(ends, name, mark)
        return ends

    def _last(self, session: str, number: int) -> Over | None:
        """The mark with which a session is over, if its last message is one."""
        ((message,),) = self._replay.messages(session, number, number)
        mark = decode_mark(message) if message[:1] == MARK else None
        return mark if isinstance(mark, Over) else None

    def _take_over(self, ends: Offsets, session: str, over: Over) -> None:
        """Every stripe of the plan that takes over begins, also those that the last one did not have."""
        ended = Session.parse(session)
        plan = self._options.plan_of(over.version)
        assert ended is not None
        if plan is None:
            raise UserError(
                f"session {session} is over and plan {over.version} takes over, which is not beside "
                f"{str(self._options.plan)!r}; put its file there"
            )
        for stripe in self._options.stripes_of(plan):
            ends.setdefault(str(Session(ended.deployment, over.version, over.breaks, stripe)), Reached())
        if len(ends) > SESSIONS_MAX:
            raise UserError(f"plan begins more than {SESSIONS_MAX:,} sessions ago; name one that is in force now")

    def _tag(self, stripe: int) -> str:
        session = Session.parse(self._replay.present(in_base_36(stripe, 3)) or "")
        if session is None:
            raise UserError(
                f"replay {self._replay} knows no stripe {stripe}; is the plan that of its deployment? If so, name the "
                "deployment's tag: .option('tag', 'FT')"
            )
        return session.deployment
