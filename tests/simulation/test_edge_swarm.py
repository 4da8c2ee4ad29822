"""A swarm at the edge: one seed draws losses, plans, Breaks, deaths and restarts; every account is checked."""

from functools import partial
from random import Random

import pytest

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.customer import Customer, CustomerOptions
from fairtape.edge.protocol.customer_records import Delivered, Gap, PlanChange
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.market.stripes import StripePlan
from simulation.edge_region import FEEDS, SERVERS, Household, Town
from unit.edge.edge_values import NOON, edition, plan, sequences, tokens, turning

TOKENS = 300


class Upheaval:
    """One drawn history: what happens at which token."""

    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        self.orders = tokens(TOKENS, chance.randrange(1, 6))
        farewell = RemulticastOptions(closing_period=chance.choice([30 * MILLISECOND, 30 * SECOND]))
        loss = chance.choice([0.0, 0.05, 0.2, 0.4])
        self.town = Town(edition(), seed=seed, loss=loss, outlet_options=farewell)
        places = sorted(chance.sample(range(10, TOKENS), 5))
        self.changes: list[tuple[int, FormationChange | StripePlan]] = []
        version = 1
        for formation, place in enumerate(places, 2):
            if chance.random() < 0.5:
                version += 1
                self.changes.append((place, plan(version, stripes=chance.randrange(1, 5))))
            else:
                broken = chance.random() < 0.4
                self.changes.append((place, turning(self.orders[place].sequence, formation, broken=broken)))
        self.dies = chance.choice(FEEDS)
        self.dies_at, self.returns_at = sorted(chance.sample(range(TOKENS), 2))
        self.told_ahead = chance.randrange(0, 8)

    def play(self) -> None:
        """Release everything, with all that was drawn."""
        town = self.town
        for number, ordered in enumerate(self.orders):
            town.at(NOON + number * MILLISECOND, partial(self._step, number, ordered))
        town.start()
        town.run(NOON + TOKENS * MILLISECOND + 5 * SECOND)

    def _step(self, number: int, ordered: Ordered) -> None:
        town = self.town
        station = town.publishers[self.dies]
        for place, change in self.changes:
            if max(place - self.told_ahead, 0) == number:
                for each in town.publishers.values():
                    self._tell(each.remulticaster, change, place)
                    if isinstance(change, StripePlan):
                        each.server.follow(change)
        if number == self.dies_at:
            station.alive = False
        if number == self.returns_at:
            station.alive = True
            station.remulticaster.resume(self._recovered(number), town.now)
            for place, change in self.changes:
                if place >= number and max(place - self.told_ahead, 0) <= number:
                    self._tell(station.remulticaster, change, place)
        town._deliver(ordered)
        for home in town.households:
            self._follow(home)

    def _recovered(self, number: int) -> StripePosition:
        """What a journal proves to a receiver that returns."""
        sequencer = StripeSequencer(StripePosition.fresh(edition()))
        sequencer.begin()
        for place, change in self.changes:
            if place < number:
                self._tell(sequencer, change, place)
        for ordered in self.orders[:number]:
            sequencer.deliver(ordered)
        return sequencer.position

    def _tell(
        self, listener: StripeSequencer | Remulticaster, change: FormationChange | StripePlan, place: int
    ) -> None:
        if isinstance(change, StripePlan):
            sequence = self.orders[place].sequence
            listener.change_plan(change, at_sequence=sequence, at=NOON + sequence)
        else:
            listener.turn(change)

    def _follow(self, home: Household) -> None:
        """The application follows each plan as soon as it is told of it."""
        for record in home.records:
            if isinstance(record, PlanChange) and record.version not in home.followed:
                home.followed.add(record.version)
                for _, change in self.changes:
                    if isinstance(change, StripePlan) and change.version <= record.version:
                        self.town.follow(home, change, change.stripes)


@pytest.mark.parametrize("seed", range(1, 13))
def test_every_customer_has_an_exact_account_of_every_upheaval(seed: int) -> None:
    upheaval = Upheaval(seed)
    town = upheaval.town
    sure = town.household(
        Customer(
            "FT", servers=tuple(SERVERS.values()), options=CustomerOptions(patience=None, retry_period=10 * MILLISECOND)
        )
    )
    hopeful = town.household(Customer("FT"))
    first = edition().plan
    for home in (sure, hopeful):
        town.follow(home, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    upheaval.play()
    assert sure.missing() == 0
    assert sorted(sure.numbers()) == sequences(upheaval.orders)
    assert len(set(hopeful.numbers())) == len(hopeful.numbers())
    assert set(hopeful.numbers()) <= set(sequences(upheaval.orders))
    for home in (sure, hopeful):
        following: dict[str, int] = {}
        for record in home.records:
            if isinstance(record, Delivered | Gap):
                assert record.first == following.get(record.session, 1)
                count = len(record.messages) if isinstance(record, Delivered) else record.count
                following[record.session] = record.first + count
    numbers = {number: place for place, number in enumerate(sure.numbers())}
    for place, change in upheaval.changes:
        boundary = upheaval.orders[place].sequence
        if isinstance(change, StripePlan):
            before = max(place for number, place in numbers.items() if number < boundary)
            after = min(place for number, place in numbers.items() if number >= boundary)
            assert before < after
