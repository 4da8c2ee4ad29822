"""A region loses receivers one after the other: nothing is missed, and each formation restores two feeds."""

from dataclasses import dataclass
from functools import partial
from random import Random

import pytest

from fairtape.core.effects import Ordered
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.customer import Customer, CustomerOptions, Heard, Silent, StripeReformation, StripeStale
from fairtape.edge.protocol.feed_assignment import Region, feeds_of
from fairtape.edge.protocol.remulticast import RemulticastOptions
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from simulation.edge_region import FEEDS, SERVERS, CustomerNode, SimulatedRegion
from unit.edge.edge_values import NOON, edition, formation_change, sequences, tokens

TOKENS = 1_200
NUMBERS = {name: number for number, name in enumerate(SERVERS, 1)}
REGION = Region(name="east", feeds=FEEDS, receivers=tuple(NUMBERS.values()))
NOTICE_TOKENS = 60  # from a death to the formation without the dead
GUARANTEED = CustomerOptions(patience=None, retry_period=10 * MILLISECOND, stale_delay=250 * MILLISECOND)
ATTENTIVE = CustomerOptions(stale_delay=250 * MILLISECOND)
LIVELY = RemulticastOptions(heartbeat_period=50 * MILLISECOND)


@dataclass(frozen=True)
class Fate:
    """When one receiver fails and returns."""

    name: str
    dies: int  # token
    returns: int


class Reformations:
    """One drawn history: receivers die one at a time, X_R reforms without them, and some come back."""

    def __init__(self, seed: int, *, loss: float, reassigns: bool = True) -> None:
        chance = Random(seed)
        self.region = SimulatedRegion(edition(), seed=seed, loss=loss, spares=True, remulticast_options=LIVELY)
        self.orders = tokens(TOKENS, chance.randrange(1, 4))
        victims = chance.sample(list(SERVERS), 3)
        self.arrival_delays = [Fate(name, 300 * turn + 20, 300 * turn + 220) for turn, name in enumerate(victims)]
        self.formation = 1
        self.reassigns = reassigns

    def play(self) -> None:
        for number, ordered in enumerate(self.orders):
            self.region.at(NOON + number * MILLISECOND, partial(self._step, number, ordered))
        self.region.start()
        self.region.run(NOON + TOKENS * MILLISECOND + SECOND)

    def _step(self, number: int, ordered: Ordered) -> None:
        for fate in self.arrival_delays:
            site = self.region.sites[fate.name]
            if number == fate.dies:
                site.alive = False
            if number == fate.returns:
                site.alive = True
                site.remulticaster.resume(self._recovered(number), self.region.now)
            if number in (fate.dies + NOTICE_TOKENS, fate.returns):
                self._reform(ordered.sequence)
        self.region._deliver(ordered)

    def _reform(self, sequence: int) -> None:
        """X_R installs a formation of those that are left; the feeds follow from it."""
        self.formation += 1
        members = [NUMBERS[name] for name, site in self.region.sites.items() if site.alive]
        for name, site in self.region.sites.items():
            if site.alive:
                site.remulticaster.on_formation(formation_change(sequence, self.formation))
                if self.reassigns:
                    site.remulticaster.set_feeds(feeds_of(NUMBERS[name], [REGION], members), self.region.now)

    def _recovered(self, number: int) -> StripePosition:
        """The position that the journal proves to a receiver that returns."""
        sequencer = StripeSequencer(StripePosition.fresh(edition()))
        sequencer.begin()
        formation = 1
        for place, ordered in enumerate(self.orders[:number]):
            for fate in self.arrival_delays:
                if place in (fate.dies + NOTICE_TOKENS, fate.returns):
                    formation += 1
                    sequencer.on_formation(formation_change(ordered.sequence, formation))
            sequencer.deliver(ordered)
        return sequencer.position


def silent_at_the_end(node: CustomerNode) -> set[tuple[int, str]]:
    silent: set[tuple[int, str]] = set()
    for record in node.records:
        if isinstance(record, Silent):
            silent.add((record.stripe, record.feed))
        elif isinstance(record, Heard):
            silent.discard((record.stripe, record.feed))
    return silent


@pytest.mark.parametrize("seed", range(1, 5))
def test_nothing_is_missed_whichever_receiver_fails_and_a_second_feed_returns(seed: int) -> None:
    """If an R_T fails an R can obtain the messages from an alternate R_T. TRMP 2001 §4.1, §5.3."""
    history = Reformations(seed, loss=0.0)
    region, first = history.region, edition().plan
    hopeful = region.add_customer(Customer("FT", options=ATTENTIVE))
    region.follow(hopeful, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert hopeful.missing() == 0
    assert sorted(hopeful.numbers()) == sequences(history.orders)
    assert hopeful.all_of(StripeStale) == []
    assert silent_at_the_end(hopeful) == set()
    assert len(hopeful.all_of(StripeReformation)) == 6 * len(first.stripes)


@pytest.mark.parametrize("seed", [1, 2])
def test_on_lossy_lines_a_guaranteed_customer_misses_nothing_either(seed: int) -> None:
    history = Reformations(seed, loss=0.2)
    region, first = history.region, edition().plan
    sure = region.add_customer(Customer("FT", servers=tuple(SERVERS.values()), options=GUARANTEED))
    region.follow(sure, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert sure.missing() == 0
    assert sorted(sure.numbers()) == sequences(history.orders)
    assert silent_at_the_end(sure) == set()


def test_without_a_reassignment_the_second_feed_stays_silent() -> None:
    """So it is the assignment that brings the feed back."""
    history = Reformations(1, loss=0.0, reassigns=False)
    history.arrival_delays = [Fate("A", 20, TOKENS + 1)]
    region, first = history.region, edition().plan
    node = region.add_customer(Customer("FT", options=ATTENTIVE))
    region.follow(node, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert node.missing() == 0
    assert {feed for _, feed in silent_at_the_end(node)} == {"A"}
