"""The stripe plans of a deployment: one file per version in its folder, and the marks by which formations name them.

A *mark* is the version and two bytes of the digest, so that two sites whose files differ never number under the same
name. A plan that a site lacks, or has with another content, is `PlanUnknown`: the site sends nothing at the edge until
it has the plan.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fairtape.core.effects import FormationChange
from fairtape.core.errors import UserError
from fairtape.edge.protocol.itch_codec import ItchEncoder
from fairtape.market.stripe_files import TEXT_MAX, digest, from_toml, to_toml
from fairtape.market.stripes import VERSION_MAX, BadPlan, StripePlan
from fairtape.ring.membership.layout import decode_formation
from fairtape.storage.files import write_atomically
from fairtape.wire.frames import Malformed

PLANS: Final = "plans"
AHEAD_MAX: Final = 4  # plans whose encoders are set up before they are in force
KEPT_MAX: Final = 16  # plans kept with their encoders; the oldest is dropped first
_DIGITS: Final = len(str(VERSION_MAX))
_VERSION_SHIFT: Final = 16


class PlanUnknown(Exception):
    """A plan that is missing here; the message says which, and what to do."""


def mark_of(plan: StripePlan) -> int:
    """The mark of a plan; never 0."""
    return plan.version << _VERSION_SHIFT | int.from_bytes(digest(plan)[:2], "big")


def version_of(mark: int) -> int:
    """The version in a mark."""
    return mark >> _VERSION_SHIFT


def mark_in(change: FormationChange) -> int:
    """The mark in a formation; 0 where it names no plan."""
    try:
        return decode_formation(change.layout).plan
    except Malformed:
        return 0


def read_plan(path: Path) -> StripePlan:
    """The plan in a file. Raises `UserError`."""
    try:
        with path.open(encoding="utf-8") as file:
            return from_toml(file.read(TEXT_MAX + 1))
    except BadPlan as bad:
        raise UserError(f"{path}: {bad}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} holds no text; name a stripe plan, as `fairtape plan stripes` writes it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a stripe plan") from None


def plan_beside(path: Path, version: int) -> StripePlan | None:
    """The plan of this version in this file, or in another file of the same folder; None where there is none."""
    for each in (path, *sorted(path.parent.glob(f"*{path.suffix}"))):
        try:
            plan = read_plan(each)
        except UserError:
            continue
        if plan.version == version:
            return plan
    return None


class _Kept(NamedTuple):
    plan: StripePlan
    encoder: ItchEncoder
    mark: int


class StripePlanStore:
    """The plans of one folder, for one core stripe, with a cache.

    A thread may set up plans while others read: the table is never changed, but replaced.
    """

    def __init__(self, folder: Path, core: int) -> None:
        self.folder = folder / PLANS
        self._core = core
        self._kept: Mapping[int, _Kept] = {}  # by version

    @property
    def encoders(self) -> dict[int, ItchEncoder]:
        """The encoders that are set up, by plan version."""
        return {version: kept.encoder for version, kept in self._kept.items()}

    @property
    def marks(self) -> list[int]:
        """The marks of plans that are set up."""
        return [kept.mark for kept in self._kept.values()]

    def path(self, version: int) -> Path:
        """The file of this version."""
        return self.folder / f"{version:0{_DIGITS}}.toml"

    def versions(self) -> list[int]:
        """The versions with a file."""
        names = [path.stem for path in self.folder.glob("*.toml")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def by_version(self, version: int) -> tuple[StripePlan, ItchEncoder]:
        """A plan and its encoder. Setting it up takes a while, so it is not called when a release is due."""
        kept = self._set_up(version)
        return kept.plan, kept.encoder

    def _set_up(self, version: int) -> _Kept:
        known = self._kept.get(version)
        if known is not None:
            return known
        path = self.path(version)
        if not path.exists():
            raise PlanUnknown(f"plan {version} is not here; put it at {path}")
        try:
            plan = read_plan(path)
        except UserError as complaint:
            raise PlanUnknown(str(complaint)) from None
        if plan.version != version:
            raise PlanUnknown(f"{path}: version is {plan.version}; expected {version}, as the file is called")
        if not plan.of_core(self._core):
            raise PlanUnknown(f"{path} has no core stripe {self._core}, which this deployment is; add it")
        made = _Kept(plan, ItchEncoder(plan, self._core), mark_of(plan))
        latest = sorted({*self._kept, version})[-KEPT_MAX:]
        self._kept = {each: made if each == version else self._kept[each] for each in latest}
        return made

    def by_mark(self, mark: int) -> tuple[StripePlan, ItchEncoder]:
        """The same, for the plan with this mark."""
        version = version_of(mark)
        kept = self._set_up(version)
        if kept.mark != mark:
            self._kept = {each: known for each, known in self._kept.items() if each != version}
            raise PlanUnknown(f"{self.path(version)} is another plan than the one that was ordered; replace it")
        return kept.plan, kept.encoder

    def prepared(self, mark: int) -> tuple[StripePlan, ItchEncoder] | None:
        """The same, if it is set up already; otherwise None."""
        known = self._kept.get(version_of(mark))
        return (known.plan, known.encoder) if known is not None and known.mark == mark else None

    def prepare(self, above: int) -> None:
        """Set up the next plans above this version."""
        for version in [each for each in self.versions() if each > above][:AHEAD_MAX]:
            if version not in self._kept:
                try:
                    self.by_version(version)
                except PlanUnknown:
                    continue  # reported when the plan is installed

    def add(self, plan: StripePlan) -> Path:
        """Write a plan to its file; an existing file is never changed."""
        path = self.path(plan.version)
        if path.exists():
            if to_toml(read_plan(path)) != to_toml(plan):
                raise UserError(f"version is {plan.version}, and {path} is another plan; give yours a higher version")
            return path
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(path, to_toml(plan).encode(), concurrent=True)
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); correct its permissions") from None
        return path
