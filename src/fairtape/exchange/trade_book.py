"""The trades of a floor between their making and their commit, and the digests that compare replicas.

A trade made at token e is tentative. When token e + N has passed, N + 1 sites hold what made it, so that it outlives N
failures: then it commits and settles (TRMP 2001 §7.3). The digest is a chain over the tokens that made trades, so one
comparison of 32 bytes says whether two replicas made the same trades ever since the beginning.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from hashlib import sha256

from fairtape.exchange.instructions import DIGEST_SIZE, TradeReport
from fairtape.exchange.outputs import Execution


class TradeBook:
    """What was traded, by token."""

    def __init__(self, *, commit_passes: int, reports_max: int) -> None:
        self._commit_passes = commit_passes
        self._reports_max = reports_max
        self._tentative: deque[tuple[int, list[Execution]]] = deque()
        self._committed: deque[tuple[int, list[Execution]]] = deque()  # of the latest tokens, in case they are lost
        self._reports: OrderedDict[int, TradeReport] = OrderedDict()
        self._current: list[Execution] = []
        self._forgotten_through = 0
        self.trades_hash = bytes(DIGEST_SIZE)
        self.tentative_count = 0
        self.next_id = 1

    def add(self, trade: Execution) -> None:
        """A trade of the token that is being applied."""
        self._current.append(trade)
        self.next_id += 1
        self.tentative_count += 1

    def close(self, formation: int, token: int) -> None:
        """The token is applied: chain its trades into the digest."""
        if not self._current:
            return
        content = b"".join(trade.to_bytes() for trade in self._current)
        self.trades_hash = sha256(self.trades_hash + content).digest()
        self._reports[token] = TradeReport(formation, token, len(self._current), self.trades_hash)
        if len(self._reports) > self._reports_max:
            self._forgotten_through, _ = self._reports.popitem(last=False)
        self._tentative.append((token, self._current))
        self._current = []

    def commit(self, token: int, formed_at: int) -> Iterator[Execution]:
        """The trades that commit when this token has passed, in the order in which they were made.

        Passes are counted within one formation. The keeper of a new one takes its first turn, and may be the very site
        that held the last token of the old one: only from the first token of the formation on does each further token
        prove another holder.
        """
        while self._tentative and max(self._tentative[0][0], formed_at) + self._commit_passes <= token:
            made_at, trades = self._tentative.popleft()
            self.tentative_count -= len(trades)
            self._committed.append((made_at, trades))
            if len(self._committed) > self._reports_max:
                self._committed.popleft()
            yield from trades

    def since(self, token: int) -> Iterator[tuple[Execution, bool]]:
        """The trades of this token and later ones, each with whether it had committed."""
        for committed, kept in ((True, self._committed), (False, self._tentative)):
            for made_at, trades in kept:
                if made_at >= token:
                    yield from ((trade, committed) for trade in trades)

    def report(self, token: int) -> TradeReport | None:
        """What this replica says about a token; None where it made no trade, or was forgotten."""
        return self._reports.get(token)

    def has_forgotten(self, token: int) -> bool:
        """Whether the token is too old to be compared."""
        return token <= self._forgotten_through

    def tentative(self) -> Iterator[Execution]:
        """The trades that have not committed yet."""
        for _, trades in self._tentative:
            yield from trades
