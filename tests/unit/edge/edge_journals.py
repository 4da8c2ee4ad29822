"""Journals with trades and plans, and a naive twin that numbers the same order in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.instants import MILLISECOND
from fairtape.core.timing import PROFILES
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.edge.service.settings import EdgeSettings, PublisherPlace
from fairtape.edge.service.stripe_plans import StripePlanStore, mark_of
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.stripes import StripePlan
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from unit.edge.edge_values import NOON, plan, tokens

COMMIT_DELAY = 2 * MILLISECOND
ANYWHERE = ("127.0.0.1", 0)
SETTINGS = EdgeSettings(
    tag="FT",
    core=0,
    publishers={"s1": PublisherPlace(feed="A", requests=ANYWHERE, replays=ANYWHERE)},
    first_plan=1,
    ttl=0,
)

Content = Ordered | FormationChange


def change(before: Ordered, number: int, *, planned: StripePlan | None = None, broken: bool = False) -> FormationChange:
    """A formation that takes over with this token, and may name a plan."""
    layout = encode_formation(
        Formation(
            number=number,
            members=(1,),
            timing=PROFILES["metro"],
            starts_at=NOON,
            first_token=before.token,
            first_sequence=before.sequence,
            plan=0 if planned is None else mark_of(planned),
            broken=broken,
        )
    )
    return FormationChange(0, number, before.token, before.sequence, broken, layout, NOON + before.sequence)


def history(*, second: StripePlan | None = None, count: int = 60, size: int = 4) -> list[Content]:
    """Trades of three formations; the third one names the second plan, if there is one."""
    entries: list[Content] = []
    formation = 0
    for place, ordered in enumerate(tokens(count, size)):
        if place in (0, count // 3, 2 * count // 3):
            formation += 1
            entries.append(change(ordered, formation, planned=second if formation == 3 else None))
        entries.append(replace(ordered, formation=formation))
    return entries


def written(folder: Path, entries: Sequence[Content], *, unreleased: int = 0) -> Path:
    """A journal of these entries, whose last tokens were not released."""
    writer = JournalWriter.open(folder, stripe=0, site=1, sync=SyncPolicy.NEVER)
    write(writer, entries, unreleased=unreleased)
    writer.close()
    return folder


def write(writer: JournalWriter, entries: Sequence[Content], *, unreleased: int = 0) -> None:
    left = sum(isinstance(each, Ordered) for each in entries) - unreleased
    for each in entries:
        if isinstance(each, FormationChange):
            writer.append_formation(each, NOON)
        else:
            writer.append(each, NOON)
            left -= 1
            if left >= 0:
                writer.release(release_of(each), NOON)


def release_of(ordered: Ordered) -> Release:
    commit_at = ordered.acknowledged_at + COMMIT_DELAY
    return Release(ordered.token, ordered.sequence, ordered.count, commit_at, commit_at, False, 0)


def plan_store(folder: Path, *plans: StripePlan) -> StripePlanStore:
    folder.mkdir(exist_ok=True)
    made = StripePlanStore(folder, 0)
    for each in plans or (plan(),):
        made.add(each)
    return made


def twin(
    entries: Sequence[Content], *, second: StripePlan | None = None
) -> tuple[StripeSequencer, dict[str, list[bytes]]]:
    """The messages of every session in the end."""
    recent, sequencer = RecentMessages(), StripeSequencer(StripePosition.fresh(Edition("FT", plan(), 0)))
    sessions: set[str] = set()
    steps = sequencer.begin()
    for each in entries:
        if isinstance(each, FormationChange):
            sequencer.on_formation(each)
            if second is not None and each.formation == 3:
                sequencer.change_plan(second, at_sequence=each.sequence, at=each.installed_at)
        else:
            steps = [*steps, *sequencer.deliver(each)]
        for step in steps:
            recent.take(step, sequencer.at)
            sessions |= {step.session} if hasattr(step, "session") else set()
        steps = []
    return sequencer, {name: list(recent.messages(name, 1, 1 << 20)) for name in sessions}
