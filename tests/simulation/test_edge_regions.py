"""A region loses receivers one after the other: nothing is missed, and after each formation it hears two again."""

from dataclasses import dataclass
from functools import partial
from random import Random

import pytest

from fairtape.core.effects import Ordered
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.customer import Customer, CustomerOptions
from fairtape.edge.protocol.customer_records import Heard, Reformation, Silent, Stale
from fairtape.edge.protocol.feed_assignment import Region, feeds_of
from fairtape.edge.protocol.remulticast import RemulticastOptions
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from simulation.edge_region import FEEDS, SERVERS, Household, Town
from unit.edge.edge_values import NOON, edition, sequences, tokens, turning

TOKENS = 1_200
NUMBERS = {name: number for number, name in enumerate(SERVERS, 1)}
REGION = Region(name="town", feeds=FEEDS, receivers=tuple(NUMBERS.values()))
NOTICE_TOKENS = 60  # from a death to the formation without the dead
GUARANTEED = CustomerOptions(patience=None, retry_period=10 * MILLISECOND, stale_delay=250 * MILLISECOND)
ATTENTIVE = CustomerOptions(stale_delay=250 * MILLISECOND)
LIVELY = RemulticastOptions(heartbeat_period=50 * MILLISECOND)


@dataclass(frozen=True)
class Fate:
    """What befalls one receiver."""

    name: str
    dies: int  # token
    returns: int


class Reformations:
    """One drawn history: receivers die one at a time, X_R reforms without them, and some come back."""

    def __init__(self, seed: int, *, loss: float, reassigns: bool = True) -> None:
        chance = Random(seed)
        self.town = Town(edition(), seed=seed, loss=loss, spares=True, outlet_options=LIVELY)
        self.orders = tokens(TOKENS, chance.randrange(1, 4))
        victims = chance.sample(list(SERVERS), 3)
        self.fates = [Fate(name, 300 * turn + 20, 300 * turn + 220) for turn, name in enumerate(victims)]
        self.formation = 1
        self.reassigns = reassigns

    def play(self) -> None:
        for number, ordered in enumerate(self.orders):
            self.town.at(NOON + number * MILLISECOND, partial(self._step, number, ordered))
        self.town.start()
        self.town.run(NOON + TOKENS * MILLISECOND + SECOND)

    def _step(self, number: int, ordered: Ordered) -> None:
        for fate in self.fates:
            station = self.town.publishers[fate.name]
            if number == fate.dies:
                station.alive = False
            if number == fate.returns:
                station.alive = True
                station.remulticaster.resume(self._recovered(number), self.town.now)
            if number in (fate.dies + NOTICE_TOKENS, fate.returns):
                self._reform(ordered.sequence)
        self.town._deliver(ordered)

    def _reform(self, sequence: int) -> None:
        """X_R tells everyone who is left; who speaks where follows from it."""
        self.formation += 1
        members = [NUMBERS[name] for name, station in self.town.publishers.items() if station.alive]
        for name, station in self.town.publishers.items():
            if station.alive:
                station.remulticaster.turn(turning(sequence, self.formation))
                if self.reassigns:
                    station.remulticaster.set_feeds(feeds_of(NUMBERS[name], [REGION], members), self.town.now)

    def _recovered(self, number: int) -> StripePosition:
        """What the journal proves to a receiver that comes back."""
        sequencer = StripeSequencer(StripePosition.fresh(edition()))
        sequencer.begin()
        told = 1
        for place, ordered in enumerate(self.orders[:number]):
            for fate in self.fates:
                if place in (fate.dies + NOTICE_TOKENS, fate.returns):
                    told += 1
                    sequencer.turn(turning(ordered.sequence, told))
            sequencer.deliver(ordered)
        return sequencer.position


def silent_at_the_end(home: Household) -> set[tuple[int, str]]:
    silent: set[tuple[int, str]] = set()
    for record in home.records:
        if isinstance(record, Silent):
            silent.add((record.stripe, record.feed))
        elif isinstance(record, Heard):
            silent.discard((record.stripe, record.feed))
    return silent


@pytest.mark.parametrize("seed", range(1, 5))
def test_whoever_dies_nothing_is_missed_and_a_second_feed_is_heard_again(seed: int) -> None:
    """If an R_T fails an R can obtain the messages from an alternate R_T. TRMP 2001 §4.1, §5.3."""
    history = Reformations(seed, loss=0.0)
    town, first = history.town, edition().plan
    hopeful = town.household(Customer("FT", options=ATTENTIVE))
    town.follow(hopeful, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert hopeful.missing() == 0
    assert sorted(hopeful.numbers()) == sequences(history.orders)
    assert hopeful.all_of(Stale) == []
    assert silent_at_the_end(hopeful) == set()
    assert len(hopeful.all_of(Reformation)) == 6 * len(first.stripes)


@pytest.mark.parametrize("seed", [1, 2])
def test_on_lossy_lines_a_guaranteed_customer_misses_nothing_either(seed: int) -> None:
    history = Reformations(seed, loss=0.2)
    town, first = history.town, edition().plan
    sure = town.household(Customer("FT", servers=tuple(SERVERS.values()), options=GUARANTEED))
    town.follow(sure, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert sure.missing() == 0
    assert sorted(sure.numbers()) == sequences(history.orders)
    assert silent_at_the_end(sure) == set()


def test_without_a_reassignment_the_second_feed_stays_silent() -> None:
    """The other half of the proof: it is the assignment that brings it back."""
    history = Reformations(1, loss=0.0, reassigns=False)
    history.fates = [Fate("A", 20, TOKENS + 1)]
    town, first = history.town, edition().plan
    home = town.household(Customer("FT", options=ATTENTIVE))
    town.follow(home, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    history.play()
    assert home.missing() == 0
    assert {feed for _, feed in silent_at_the_end(home)} == {"A"}
