"""A swarm test of the edge: one seed draws losses, plans, Breaks, crashes and restarts; every customer is checked."""

from functools import partial
from random import Random

import pytest

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.customer import Customer, CustomerOptions, Delivered, PlanChange, StripeGap
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.market.stripes import StripePlan
from simulation.edge_region import FEEDS, SERVERS, CustomerNode, SimulatedRegion
from unit.edge.edge_values import NOON, edition, formation_change, plan, sequences, tokens

TOKENS = 300


class FaultSchedule:
    """One random schedule: the faults and changes, by token."""

    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        self.orders = tokens(TOKENS, chance.randrange(1, 6))
        farewell = RemulticastOptions(closing_period=chance.choice([30 * MILLISECOND, 30 * SECOND]))
        loss = chance.choice([0.0, 0.05, 0.2, 0.4])
        self.region = SimulatedRegion(edition(), seed=seed, loss=loss, remulticast_options=farewell)
        places = sorted(chance.sample(range(10, TOKENS), 5))
        self.changes: list[tuple[int, FormationChange | StripePlan]] = []
        version = 1
        for formation, place in enumerate(places, 2):
            if chance.random() < 0.5:
                version += 1
                self.changes.append((place, plan(version, stripes=chance.randrange(1, 5))))
            else:
                broken = chance.random() < 0.4
                self.changes.append((place, formation_change(self.orders[place].sequence, formation, broken=broken)))
        self.dies = chance.choice(FEEDS)
        self.dies_at, self.returns_at = sorted(chance.sample(range(TOKENS), 2))
        self.told_ahead = chance.randrange(0, 8)

    def play(self) -> None:
        """Release everything, with all faults and changes."""
        region = self.region
        for number, ordered in enumerate(self.orders):
            region.at(NOON + number * MILLISECOND, partial(self._step, number, ordered))
        region.start()
        region.run(NOON + TOKENS * MILLISECOND + 5 * SECOND)

    def _step(self, number: int, ordered: Ordered) -> None:
        region = self.region
        site = region.sites[self.dies]
        for place, change in self.changes:
            if max(place - self.told_ahead, 0) == number:
                for each in region.sites.values():
                    self._pass_on(each.remulticaster, change, place)
                    if isinstance(change, StripePlan):
                        each.server.follow(change)
        if number == self.dies_at:
            site.alive = False
        if number == self.returns_at:
            site.alive = True
            site.remulticaster.resume(self._recovered(number), region.now)
            for place, change in self.changes:
                if place >= number and max(place - self.told_ahead, 0) <= number:
                    self._pass_on(site.remulticaster, change, place)
        region._deliver(ordered)
        for node in region.customers:
            self._follow(node)

    def _recovered(self, number: int) -> StripePosition:
        """The position that a journal proves to a receiver that returns."""
        sequencer = StripeSequencer(StripePosition.fresh(edition()))
        sequencer.begin()
        for place, change in self.changes:
            if place < number:
                self._pass_on(sequencer, change, place)
        for ordered in self.orders[:number]:
            sequencer.deliver(ordered)
        return sequencer.position

    def _pass_on(
        self, listener: StripeSequencer | Remulticaster, change: FormationChange | StripePlan, place: int
    ) -> None:
        if isinstance(change, StripePlan):
            sequence = self.orders[place].sequence
            listener.change_plan(change, at_sequence=sequence, at=NOON + sequence)
        else:
            listener.on_formation(change)

    def _follow(self, node: CustomerNode) -> None:
        """The application follows each plan as soon as it is reported."""
        for record in node.records:
            if isinstance(record, PlanChange) and record.version not in node.followed:
                node.followed.add(record.version)
                for _, change in self.changes:
                    if isinstance(change, StripePlan) and change.version <= record.version:
                        self.region.follow(node, change, change.stripes)


@pytest.mark.parametrize("seed", range(1, 13))
def test_every_customer_gets_exactly_what_was_released(seed: int) -> None:
    schedule = FaultSchedule(seed)
    region = schedule.region
    guaranteed = region.add_customer(
        Customer(
            "FT", servers=tuple(SERVERS.values()), options=CustomerOptions(patience=None, retry_period=10 * MILLISECOND)
        )
    )
    best_effort = region.add_customer(Customer("FT"))
    first = edition().plan
    for node in (guaranteed, best_effort):
        region.follow(node, first, first.stripes, starts=dict.fromkeys(first.stripes, 1))
    schedule.play()
    assert guaranteed.missing() == 0
    assert sorted(guaranteed.numbers()) == sequences(schedule.orders)
    assert len(set(best_effort.numbers())) == len(best_effort.numbers())
    assert set(best_effort.numbers()) <= set(sequences(schedule.orders))
    for node in (guaranteed, best_effort):
        following: dict[str, int] = {}
        for record in node.records:
            if isinstance(record, Delivered | StripeGap):
                assert record.first == following.get(record.session, 1)
                count = len(record.messages) if isinstance(record, Delivered) else record.count
                following[record.session] = record.first + count
    numbers = {number: place for place, number in enumerate(guaranteed.numbers())}
    for place, change in schedule.changes:
        boundary = schedule.orders[place].sequence
        if isinstance(change, StripePlan):
            before = max(place for number, place in numbers.items() if number < boundary)
            after = min(place for number, place in numbers.items() if number >= boundary)
            assert before < after
