"""Passing the event-driven token (RMP): repeated until the next site shows that it has taken it up. TRMP 2001 §2."""

from fairtape.core.effects import Send
from fairtape.core.instants import Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.token import EventToken
from fairtape.wire.frames import NodeId, TokenAck


class TokenRefused(Exception):
    """The next site has not taken the token up, however often it was passed."""

    def __init__(self, site: NodeId, token: int) -> None:
        super().__init__(site, token)
        self.site = site
        self.token = token


class TokenPassing:
    """One site's words about the token to its neighbours."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, ordering: Ordering) -> None:
        self._me = me
        self._authenticator = authenticator
        self._ordering = ordering

    def repeat(self, token: EventToken, now: Instant) -> Send | None:
        """Pass the token again where that is due; `TokenRefused` where it was passed often enough."""
        if token.passing is None or token.repeat_at() > now:
            return None
        if len(self._ordering.formations.latest.members) == 1:
            token.give_up()
            return None
        if token.repeat(now):
            return Send(token.next_site, self._ordering.datagrams(token.passing))
        token.give_up()
        raise TokenRefused(token.next_site, token.passing + 1)

    def confirm(self, token: int) -> list[Send]:
        """In order to prevent unnecessary reformations: there is no source message to acknowledge.

        The answer to a repeated Ack is one that nobody answers: two sites that answered an Ack with an Ack would never
        stop.
        """
        formations = self._ordering.formations
        previous = formations.holder(token)
        if previous == self._me:
            return []
        message = TokenAck(self._ordering.stripe, formations.latest.number, self._me, token)
        return [Send(previous, [self._authenticator.for_sites(message)])]
