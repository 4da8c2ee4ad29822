"""A site's seats in secondary loops: in its own, and in those that it joins to the loop above."""

from fairtape.core.effects import LOOP_CHANNEL, Effect, JoinChannels, Multicast, Reason
from fairtape.core.instants import NEVER, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.reconfigurable_receiver import ReconfigurableReceiver
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.secondary_loop import SecondaryLoop
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import LoopToken, MembershipState


class LoopMemberships:
    """The latest formation of each secondary loop that concerns a site, and its part in it."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.seats: dict[int, SecondaryLoop] = {}  # loops that this site is a member of
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator
        self._formations: dict[int, Formation] = {}

    def enter(self, formation: Formation, incarnation: int) -> list[Effect]:
        """A new layout of a loop."""
        if formation.number <= self.number(formation.loop):
            return []
        self._formations[formation.loop] = formation
        self.seats.pop(formation.loop, None)
        if formation.counts_on(self._me, incarnation):
            self.seats[formation.loop] = SecondaryLoop(formation, me=self._me)
        return [JoinChannels(tuple(LOOP_CHANNEL + loop for loop in self.seats))]

    def hear(self, message: LoopToken, now: Instant) -> str:
        """Another member has passed a token on; the name of what that means."""
        seat = self.seats.get(message.loop)
        if seat is None or seat.formation.number != message.formation:
            return "foreign"
        return seat.hear(message.token, message.sender, now)

    def advance(self, complete_through: int, now: Instant) -> list[Effect]:
        """This site holds everything up to a primary token: pass on what waits for that."""
        effects: list[Effect] = []
        for loop, seat in self.seats.items():
            for token in seat.advance(complete_through, now):
                passed = LoopToken(self._stripe, seat.formation.number, self._me, loop, token)
                effects.append(Multicast(LOOP_CHANNEL + loop, [self._authenticator.govern(passed)]))
        return effects

    def deadline(self) -> Instant:
        """When to repeat a token, or to give it up."""
        return min((seat.deadline() for seat in self.seats.values()), default=NEVER)

    def number(self, loop: int) -> int:
        """Of the latest formation of a loop; 0: none is known."""
        return self._formations[loop].number if loop in self._formations else 0

    def membership_state(self, loop: int) -> MembershipState:
        """What this site does in a loop."""
        return MembershipState.MEMBER if loop in self.seats else MembershipState.OBSERVER

    def suspicion(self, loop: int) -> tuple[NodeId, int, Reason] | None:
        """Whom this site suspects in a loop, and at which token."""
        return self.seats[loop].suspicion if loop in self.seats else None

    def suspicions(self) -> int:
        """In how many loops it suspects somebody."""
        return sum(seat.suspicion is not None for seat in self.seats.values())

    def connect(self, receiver: ReconfigurableReceiver, home: int) -> None:
        """Tell the receiver whom to ask for repairs, the junction of its own loop (2001 §4.1), and who asks it."""
        formation = self._formations.get(home)
        others = [member for member in receiver.formation.members if member != self._me]
        if formation is not None and formation.junction != self._me:
            others.insert(0, formation.junction)
        receiver.parent = others[0] if others else None
        receiver.repairs.home = self.seats[home].formation if home in self.seats and not receiver.active else None
        receiver.repairs.children = tuple(
            seat.formation for seat in self.seats.values() if seat.formation.junction == self._me
        )

    def needed_after(self) -> int | None:
        """What those who ask this site for repairs are known to hold; None where nobody does."""
        children = [seat.stable_through for seat in self.seats.values() if seat.formation.junction == self._me]
        return min(children, default=None)
