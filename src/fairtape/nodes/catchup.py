"""Both sides of catching up: a site that takes the past from others, and a site that lets others take it (R_x)."""

from collections.abc import Sequence
from typing import Final

from fairtape.core.effects import Fetch, Ordered, Send
from fairtape.core.entries import Position, decode_entry, position_of
from fairtape.core.instants import NEVER, Instant
from fairtape.nodes.catchup_transfer import WINDOW, CatchUpReader, answer
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.reconfigurable_receiver import Disagreement, ReconfigurableReceiver
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import PLACE, CatchUp, HistoryChunk, chunk_size

QUESTIONS_MAX: Final = 64  # of others who catch up, that wait for the journal


class CatchUpClient:
    """Takes into a receiver's order what the ring cannot repair."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.reader = CatchUpReader()
        self.adopted = 0  # entries
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator

    def follow(self, receiver: ReconfigurableReceiver, now: Instant) -> None:
        """Begin to ask when the receiver is stranded, and stop when it is not."""
        if receiver.stranded:
            self.reader.start(now)
        elif self.reader.ask_at != NEVER:
            self.reader.stop()

    def ask(self, receiver: ReconfigurableReceiver, now: Instant) -> list[Send]:
        """The next question, to the next site."""
        servers = self._servers(receiver)
        if not servers:
            self.reader.stop()
            return []
        formation, token = receiver.position
        chunk = self.reader.first_missing(receiver.position)
        question = self._authenticator.govern(
            CatchUp(self._stripe, formation, self._me, token, chunk, self.reader.window)
        )
        self.reader.asked(now, receiver.formation.timing.retry_period)
        return [Send(self.reader.next_server(servers), [question])]

    def _servers(self, receiver: ReconfigurableReceiver) -> list[NodeId]:
        """Who may have what is missing: the parent, the keeper of the past, and all members."""
        formation = receiver.formation
        likely = [receiver.parent or formation.keeper, formation.keeper, *formation.members]
        return [site for site in dict.fromkeys(likely) if site and site != self._me]

    def take(self, past: HistoryChunk, receiver: ReconfigurableReceiver, now: Instant) -> str:
        """Take an answer; the name of what became of it. `Disagreement` where the others have left us behind."""
        if receiver.fenced or self.reader.ask_at == NEVER:  # a fenced site has given its answer
            return "unasked"
        known, latest = past.known, receiver.formation.number
        if known < latest and (past.chunks or known):
            return "unknowing"  # what it holds may have been left behind, and it could not say so
        if past.chunks:
            self.reader.take(past, now)
            if self._adopt(receiver, past.settled_through, now):
                receiver.verify(now)
            receiver.catch_up_to(receiver.complete_through, past.settled_through, now)
            receiver.compare(past.complete_through)
            return "past"
        if (past.formation, past.after) != receiver.position:
            if known >= latest:  # it followed the ring, and may be level by that
                receiver.compare(past.complete_through)
            return "outdated"
        if not known:
            self.reader.go_on(now)
            return "past"
        if known > latest:
            return "ahead"  # what is held here may have been left behind since: that formation will be told, and then
        if self._confirms(past, receiver):
            receiver.verify(now)
        through = past.complete_through if receiver.active else min(past.complete_through, past.settled_through)
        receiver.catch_up_to(through, past.settled_through, now, known=known)
        receiver.compare(past.complete_through)
        return "past"

    @staticmethod
    def _confirms(past: HistoryChunk, receiver: ReconfigurableReceiver) -> bool:
        """Whether one who knows the latest formation, and says where its journal ends, has what is held here.

        `Disagreement` where it holds the order at least as far and has less: the others have left the rest behind.
        """
        ours = receiver.journal_end
        if not past.data or past.complete_through < ours.token:
            return False
        theirs = Position(*PLACE.unpack(past.data))
        if not receiver.verified and theirs < ours and ours.token <= receiver.fixed_through:
            raise Disagreement(theirs.token)
        return True

    def _adopt(self, receiver: ReconfigurableReceiver, settled_through: int, now: Instant) -> bool:
        """Take into the order what has come whole. A site that is not seated takes only what cannot be taken back.

        True where the next one is such: it follows on what is held here, so nothing here contradicts it.
        """
        while (entry := self.reader.entry_after(receiver.position)) is not None:
            unsettled = isinstance(entry, Ordered) and entry.token > max(settled_through, receiver.fixed_through)
            if unsettled and not receiver.active:
                self.reader.wait(now)
                return entry.formation == receiver.position.formation
            self.reader.go_forward(receiver.position)
            receiver.adopt(entry)
            self.adopted += 1
        return False


class CatchUpServer:
    """Answers from the journal. Keeps a question only while the journal is being read."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, datagram_max: int) -> None:
        self._me = me
        self._authenticator = authenticator
        self._datagram_max = datagram_max
        self._questions: dict[int, CatchUp] = {}
        self._ticket = 0

    def look_up(self, question: CatchUp) -> Fetch | None:
        """What to read; None where too many are being served already."""
        if len(self._questions) >= QUESTIONS_MAX:
            return None
        self._ticket += 1
        self._questions[self._ticket] = question
        # Twice what fits, so that an answer has all the chunks that were asked for, and nobody waits for more of it.
        size = 2 * min(question.chunks_max, WINDOW) * chunk_size(self._datagram_max)
        return Fetch(question.token, question.formation, size, self._ticket)

    def found(self, ticket: int, entries: Sequence[bytes], receiver: ReconfigurableReceiver) -> list[Send]:
        """The answer, now that the journal was read."""
        question = self._questions.pop(ticket, None)
        if question is None:
            return []
        chunks = answer(
            question,
            entries,
            me=self._me,
            complete=receiver.complete_through,
            settled=receiver.survives_through,
            known=receiver.formation.number if receiver.verified else 0,
            exhausted=not entries or position_of(decode_entry(entries[-1])) == receiver.journal_end,
            journal_end=receiver.journal_end,
            datagram_max=self._datagram_max,
        )
        return [Send(question.sender, [self._authenticator.govern(chunk) for chunk in chunks])]
