"""A site's outlet on real sockets: silent until it is sure, and the same numbers whatever happened to it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairtape.core.effects import Deliver, FormationChange
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.feed_assignment import Region, feeds_of
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeMessages, StripeSequencer
from fairtape.edge.service.publisher import EdgePublisher
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.edge_wires import Groups, Hearer, until
from unit.edge.edge_values import NOON, delivery
from unit.edge_runtime.edge_journals import SETTINGS, Content, catalogue, history, release_of

CLOCK = SharedClock()


class Post:
    """A site's seat, as far as a station notices it: the journal is written, then the herald is told; a release is
    handed over, then marked."""

    def __init__(
        self, folder: Path, plans: StripePlanStore, *, settings: EdgeSettings = SETTINGS, name: str = "s1"
    ) -> None:
        self.writer = JournalWriter.open(folder / name, stripe=0, site=1, sync=SyncPolicy.NEVER)
        self.said: list[str] = []
        self.station = EdgePublisher(
            settings,
            name,
            catalogue=plans,
            journal=folder / name,
            sidecar=folder / "edge" / f"{name}.json",
            interface=LOOPBACK,
            log=self.said.append,
        )

    def tell(self, each: Content) -> None:
        if isinstance(each, FormationChange):
            self.writer.append_formation(each, NOON)
            self.station.turned(each)
        else:
            self.writer.append(each, NOON)
            self.station.delivered(Deliver(each, replace(release_of(each), released_at=CLOCK.now())))
            self.writer.release(release_of(each), NOON)

    def wake(self) -> None:
        deadline = self.station.deadline()
        assert deadline is not None
        now = CLOCK.now()
        if deadline <= now:
            self.station.wake(now)

    @property
    def speaks(self) -> bool:
        return bool(self.station.status()["speaks"])

    def close(self) -> None:
        self.station.close()
        self.writer.close()


@contextmanager
def post(
    folder: Path, plans: StripePlanStore, *, settings: EdgeSettings = SETTINGS, name: str = "s1"
) -> Iterator[Post]:
    made = Post(folder, plans, settings=settings, name=name)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def hearer(plan: StripePlan, feed: str = "A") -> Iterator[Hearer]:
    made = Hearer(plan, feed)
    try:
        yield made
    finally:
        made.close()


def expected(plan: StripePlan, told: Sequence[Content], second: StripePlan | None = None) -> dict[str, list[bytes]]:
    """What every session must hold, worked out in memory."""
    shelf, striper = RecentMessages(), StripeSequencer(StripePosition.fresh(Edition("FT", plan, 0)))
    steps = striper.begin()
    names: dict[str, None] = {}
    for each in told:
        if isinstance(each, FormationChange):
            striper.turn(each)
            if second is not None and each.formation == 3:
                striper.change_plan(second, at_sequence=each.sequence, at=each.installed_at)
        else:
            steps += striper.deliver(each)
        for step in steps:
            shelf.take(step, striper.at)
            if isinstance(step, StripeMessages):
                names[step.session] = None
        steps = []
    return {name: list(shelf.messages(name, 1, 1 << 20)) for name in names}


def complete(heard: Hearer, wanted: dict[str, list[bytes]]) -> bool:
    found = heard.messages()
    return all(len(found.get(name, {})) == len(messages) for name, messages in wanted.items())


def check(heard: Hearer, wanted: dict[str, list[bytes]]) -> None:
    found = heard.messages()
    assert {name: [each[number] for number in sorted(each)] for name, each in found.items()} == wanted
    for each in found.values():
        assert sorted(each) == list(range(1, len(each) + 1))


def test_a_customer_hears_everything_that_a_site_releases(tmp_path: Path) -> None:
    plan = Groups().plan()
    told = history()
    wanted = expected(plan, told)
    with post(tmp_path, catalogue(tmp_path, plan)) as site, hearer(plan) as heard:
        for each in told[:10]:
            site.tell(each)  # before the outlet has found its place
        until(lambda: site.speaks, site.wake)
        for each in told[10:]:
            site.tell(each)
            site.wake()
            heard.hear(0)
        until(lambda: complete(heard, wanted), site.wake, heard.hear)
        check(heard, wanted)
        until(lambda: any(not packet.messages for packet in heard.packets), site.wake, heard.hear)
        assert site.station.status()["unsent"] == 0


def test_a_restarted_site_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    plan = Groups().plan()
    told = history(count=90)
    wanted = expected(plan, told)
    with hearer(plan) as heard:
        for begin in range(0, len(told), 31):  # four lives, none of which ends where a formation does
            with post(tmp_path, catalogue(tmp_path, plan)) as site:
                until(lambda: site.speaks, site.wake)
                for each in told[begin : begin + 31]:
                    site.tell(each)
                heard.hear(0)
            if begin == 31:
                (tmp_path / "edge" / "s1.json").unlink()
        until(lambda: complete(heard, wanted), heard.hear)
        check(heard, wanted)


def test_another_plan_takes_over_without_a_lost_or_doubled_message(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    told = history(second=second)
    wanted = expected(plan, told, second)
    with post(tmp_path, catalogue(tmp_path, plan, second)) as site, hearer(second) as heard:
        until(lambda: len(site.station.status()["marks"]) == 2 and site.speaks, site.wake)
        for each in told:
            site.tell(each)
            heard.hear(0)
        assert site.station.status()["plan"] == 2
        until(lambda: complete(heard, wanted), site.wake, heard.hear)
        check(heard, wanted)


def test_a_site_without_the_plan_is_silent_until_it_has_it_and_then_says_all_that_it_owes(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    told = history(second=second)
    wanted = expected(plan, told, second)
    plans = catalogue(tmp_path, plan)
    with post(tmp_path, plans) as site, hearer(second) as heard:
        until(lambda: site.speaks, site.wake)
        for each in told:
            site.tell(each)
            heard.hear(0)
        assert not site.speaks
        until(lambda: "plan 2 is not here" in site.said[-1], site.wake)
        assert not [name for name in heard.messages() if name.startswith("FT002")]
        plans.add(second)
        until(lambda: site.speaks, site.wake)
        assert site.station.status()["plan"] == 2
        until(lambda: complete(heard, wanted), site.wake, heard.hear)
        check(heard, wanted)


def test_an_interface_without_a_socket_leaves_the_site_alone(tmp_path: Path) -> None:
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.config.draft import Draft, create_deployment
    from fairtape.deployment.process.edge import SilencedPublisher, open_publisher

    folder = tmp_path / "new"
    create_deployment(folder, Draft(loops=(1,), profile="metro", edge=1))
    text = (folder / "deployment.toml").read_text()
    site = next(line for line in text.splitlines() if line.startswith("s1 = { node"))
    (folder / "deployment.toml").write_text(text.replace(site, 's1 = { node = 1, address = "192.0.2.1:17200" }'))
    deployment = read_deployment(folder)
    said: list[str] = []
    station = open_publisher(deployment, deployment.sites[0], tmp_path, said.append)
    assert isinstance(station, SilencedPublisher)
    station.delivered(delivery(next(each for each in history() if not isinstance(each, FormationChange))))
    assert station.status()["unsent"] == 4
    assert "192.0.2.1" in said[0]


def test_a_site_speaks_on_the_feeds_that_a_formation_leaves_to_it(tmp_path: Path) -> None:
    """At home on A; B is silent until its receiver has failed, and goes on with the same numbers. TRMP 2001 §5.3."""
    plan = Groups().plan()
    region = Region(name="here", feeds=("A", "B"), receivers=(1, 2))
    told = history(count=90)
    wanted = expected(plan, told)
    settings = replace(SETTINGS, regions=(region,))
    with (
        post(tmp_path, catalogue(tmp_path, plan), settings=settings) as site,
        hearer(plan) as heard,
        hearer(plan, "B") as other,
    ):
        site.station.assign(feeds_of(1, settings.regions, [1, 2]), 1)
        until(lambda: site.speaks, site.wake)
        for each in told[:50]:
            site.tell(each)
            site.wake()
            heard.hear(0)
        other.hear(0)
        assert other.packets == []
        site.station.assign(("A", "B"), 1)
        assert site.station.status()["feeds"] == ["A", "B"]
        for each in told[50:]:
            site.tell(each)
            site.wake()
            heard.hear(0)
            other.hear(0)
        until(lambda: complete(heard, wanted), site.wake, heard.hear)
        check(heard, wanted)
        until(lambda: bool(other.messages()), site.wake, other.hear)
        for name, messages in other.messages().items():
            assert all(wanted[name][number - 1] == message for number, message in messages.items())
