"""The distributed trading floor: every replica applies the same rules to the same sequence. TRMP 2001 §7.3.

`apply` takes Msg(e) and gives what follows from it. Nothing else enters: no clock but the instant of the token, no
chance, no table from outside. So equal sequences give equal trades, balances and outputs at every site, and a floor
that is rebuilt from a journal is the floor that was lost.

**Money.** A gateway checks funds before it enters an order, but only the sequence decides: an order whose account
cannot pay *at its place* is rejected there by every replica. Two gateways that let the same funds through at once
change nothing. What an order may cost stays reserved until it is cancelled or its trades commit; what a trade brings in
can be spent when it commits, not before.

**Replays.** A request names its gateway and that gateway's rising number. One that comes from another source, or with a
number that is not above the last, is rejected.

**Clocks.** Batch auctions and Dutch clocks move with the instants of delivered tokens, before the messages of the token
are applied. Tokens without messages are not delivered, so where a clock must not wait for trade somebody sends a
`Pulse`.

**A Break.** A token that is lost takes its trades with it: a replica that has applied tokens from the break on names
every trade of them as void, and then refuses to go on until it is rebuilt from its journal, which the ring has cut to
what the others hold. Trades of earlier tokens, tentative ones too, are the same at all survivors and stand.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.spans import blocks
from fairtape.exchange.ledger import Ledger
from fairtape.exchange.market import Market, flaw_of
from fairtape.exchange.order_codec import decode, encode
from fairtape.exchange.order_handling import Customer, FloorLimits, OrderHandler
from fairtape.exchange.orders import (
    Action,
    BadOrder,
    Cancel,
    Control,
    Funding,
    NewOrder,
    OpenMarket,
    Pulse,
    Replace,
    TradeReport,
)
from fairtape.exchange.outputs import (
    Broken,
    Committed,
    Evidence,
    Execution,
    Funded,
    MarketChanged,
    Output,
    Printed,
    Rejected,
    Voided,
)
from fairtape.exchange.rules.values import Continuous
from fairtape.market.prices import ONE
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_KIND
from fairtape.wire.blocks import unpack_messages

Request: TypeAlias = NewOrder | Cancel | Replace | OpenMarket | Control | Funding

_TICKER: Final = bytes([TRADE_KIND])


class OutOfOrder(ValueError):
    """A token that does not follow what was applied, or any token after a break that asks for a rebuild."""


class Floor:
    """All markets of one sequence, and the ledger behind them."""

    def __init__(
        self,
        *,
        commit_passes: int,
        venue: str = "FLOOR",
        operators: Iterable[int] | None = None,
        arbiters: Iterable[int] | None = None,
        limits: FloorLimits | None = None,
    ) -> None:
        assert commit_passes >= 0
        self._desk = OrderHandler(commit_passes=commit_passes, limits=limits or FloorLimits())
        self._venue = venue
        self._operators = None if operators is None else frozenset(operators)  # None: every source may administer
        self._arbiters = None if arbiters is None else frozenset(arbiters)  # None: every source may report
        self._gateways: dict[int, int] = {}  # the last number of each
        self._stale = False
        self._formation = 0  # of the last token that was applied
        self._formed_at = 0  # the first token of that formation that was applied
        self._reached: OrderedDict[int, int] = OrderedDict()  # the last token that was applied of each formation

    # What comes in.

    def apply(self, ordered: Ordered) -> list[Output]:
        """Apply Msg(e), and say what follows from it."""
        self._follow(ordered.token)
        self._enter(ordered)
        self._commit(ordered.token)
        self._desk.at = ordered.acknowledged_at
        for market in self.markets.values():
            if type(market.rule) is not Continuous:
                self._desk.trade(market, market.advance(self._desk.at))
                self._desk.settle_down(market)
        for number, source, payload in _messages(ordered):
            self._desk.number = number
            self._message(source, payload)
        self._desk.trades.close(ordered.formation, ordered.token)
        return self._drain()

    def pass_token(self, token: int, formation: int | None = None) -> list[Output]:
        """A token without messages has passed: trades may commit the sooner for it. Telling it is never necessary.

        One of a formation that has delivered nothing yet proves nothing here: `TradeBook.commit` says why.
        """
        self._follow(token)
        if formation in (None, self._formation):
            self._commit(token)
        return self._drain()

    def turn(self, change: FormationChange) -> list[Output]:
        """A new formation takes over. Only a Break matters here."""
        if not change.broken:
            return []
        lost = self.token >= change.token
        self._desk.outputs.append(Broken(change.token, change.sequence, lost))
        self._desk.outputs += [Voided(trade, committed) for trade, committed in self._desk.trades.since(change.token)]
        self._stale = self._stale or lost
        return self._drain()

    # What is asked.

    @property
    def token(self) -> int:
        """The last token that was applied."""
        return self._desk.token

    @property
    def ledger(self) -> Ledger:
        """Who owns what."""
        return self._desk.ledger

    @property
    def markets(self) -> Mapping[Symbol, Market]:
        """The open markets."""
        return self._desk.markets

    @property
    def customers(self) -> Mapping[str, Customer]:
        """The accounts, with their open orders."""
        return self._desk.customers

    @property
    def trades_hash(self) -> bytes:
        """The digest of all trades so far: equal at replicas that have applied the same tokens."""
        return self._desk.trades.trades_hash

    @property
    def trade_count(self) -> int:
        """How many trades were made so far."""
        return self._desk.trades.next_id - 1

    def report(self, token: int) -> bytes | None:
        """What the arbiter publishes about a token, as a message; None where it made no trade."""
        report = self._desk.trades.report(token)
        return None if report is None else encode(report)

    def tentative(self) -> Iterator[Execution]:
        """The trades that have not committed yet."""
        return self._desk.trades.tentative()

    # Tokens.

    def _follow(self, token: int) -> None:
        if self._stale:
            raise OutOfOrder("the floor has applied tokens that are lost; rebuild it from the journal")
        if token <= self.token:
            raise OutOfOrder(f"token {token} came after token {self.token}; the order goes one way")
        self._desk.token = token

    def _enter(self, ordered: Ordered) -> None:
        if ordered.formation != self._formation:
            self._formation, self._formed_at = ordered.formation, ordered.token
        self._reached[ordered.formation] = ordered.token
        if len(self._reached) > self._desk.limits.formations_max:
            self._reached.popitem(last=False)

    def _commit(self, token: int) -> None:
        for trade in self._desk.trades.commit(token, self._formed_at):
            amount = trade.price * trade.quantity // ONE
            buyer, seller = self.ledger.accounts[trade.buyer], self.ledger.accounts[trade.seller]
            self.ledger.settle(buyer, seller, trade.symbol, trade.quantity, amount)
            self._desk.outputs.append(Committed(trade, token))
            self._desk.outputs.append(Printed(trade, self._venue))

    def _drain(self) -> list[Output]:
        outputs, self._desk.outputs = self._desk.outputs, []
        return outputs

    # Messages.

    def _message(self, source: int, payload: bytes) -> None:
        if payload[:1] == _TICKER:
            return
        try:
            message = decode(payload)
        except BadOrder as error:
            self._desk.outputs.append(Rejected(self._desk.number, source, 0, "", "", str(error)))
            return
        if isinstance(message, TradeReport):
            self._check_report(source, message)
        elif not isinstance(message, Pulse):
            reason = self._replayed(source, message.gateway, message.gateway_number) or self._request(source, message)
            if reason is not None:
                self._reject(source, message, reason)

    def _reject(self, source: int, message: Request, reason: str) -> None:
        account = "" if isinstance(message, OpenMarket | Control) else message.account
        client_id = message.client_id if isinstance(message, NewOrder | Replace) else ""
        if isinstance(message, Cancel):
            client_id = message.order_id
        self._desk.outputs.append(
            Rejected(self._desk.number, source, message.gateway_number, account, client_id, reason)
        )

    def _replayed(self, source: int, gateway: int, number: int) -> str | None:
        """Why a request is not a fresh one of the source that brings it."""
        if gateway != source:
            return f"gateway is {gateway}, but source {source} sent it: a request is taken only from its own gateway"
        last = self._gateways.get(source)
        if last is None and len(self._gateways) == self._desk.limits.gateways_max:
            return f"gateway {source} is one more than the {self._desk.limits.gateways_max} that the floor knows"
        if last is not None and number <= last:
            return f"gateway_number is {number}, not above {last}: it was played again"
        self._gateways[source] = number
        return None

    def _request(self, source: int, message: Request) -> str | None:
        """Carry out a request; why it cannot be."""
        if isinstance(message, NewOrder):
            return self._desk.enter(source, message)
        if isinstance(message, Cancel):
            return self._desk.cancel(message)
        if isinstance(message, Replace):
            return self._desk.replace(source, message)
        if self._operators is not None and source not in self._operators:
            return f"source {source} is no operator; markets and money are theirs"
        if isinstance(message, Funding):
            return self._fund(message)
        return self._open(message) if isinstance(message, OpenMarket) else self._control(message)

    # Operators and arbiters.

    def _fund(self, funding: Funding) -> str | None:
        reason = self.ledger.fund(funding.account, funding.asset, funding.amount)
        if reason is not None:
            return reason
        if funding.account not in self.customers:
            self._desk.customers[funding.account] = Customer(self.ledger.accounts[funding.account])
        self._desk.outputs.append(Funded(self._desk.number, funding.account, funding.asset, funding.amount))
        return None

    def _open(self, terms: OpenMarket) -> str | None:
        if (flaw := flaw_of(terms)) is not None:
            return flaw
        market = self.markets.get(terms.symbol)
        if market is not None:
            if (reason := market.change(terms, self._desk.at)) is not None:
                return reason
        elif len(self.markets) == self._desk.limits.symbols_max:
            return f"symbol is {terms.symbol}; the floor is full with {self._desk.limits.symbols_max} markets"
        else:
            self._desk.markets[terms.symbol] = Market(terms, self._desk.at)
        self._desk.outputs.append(
            MarketChanged(self._desk.number, terms.symbol, f"trades as {type(terms.rule).__name__}")
        )
        return None

    def _control(self, control: Control) -> str | None:
        market = self.markets.get(control.symbol)
        if market is None:
            return f"symbol is {control.symbol}; no such market is open"
        match control.action:
            case Action.HALT:
                market.halt(self._desk.at)
            case Action.RESUME:
                market.resume(self._desk.at)
            case Action.UNCROSS:
                fills = market.uncross()
                if fills is None:
                    return f"{control.symbol} trades as {type(market.rule).__name__}, which has no rounds to end"
                self._desk.trade(market, fills)
            case Action.CLOSE:
                market.close()
                del self._desk.markets[control.symbol]
        self._desk.outputs.append(MarketChanged(self._desk.number, control.symbol, control.action.name.lower()))
        self._desk.settle_down(market)
        return None

    def _check_report(self, source: int, report: TradeReport) -> None:
        """Compare the arbiter's word with this replica's own."""
        if self._arbiters is not None and source not in self._arbiters:
            self._desk.outputs.append(Rejected(self._desk.number, source, 0, "", "", f"source {source} is no arbiter"))
            return
        if (reason := self._unchecked(report)) is not None:
            self._desk.outputs.append(Rejected(self._desk.number, source, 0, "", "", reason))
            return
        own = self._desk.trades.report(report.token)
        count, digest = (0, "none") if own is None else (own.trade_count, own.trades_hash.hex())
        for field, expected, found in (
            ("trade_count", str(count), str(report.trade_count)),
            ("trades_hash", digest, report.trades_hash.hex()),
        ):
            if expected != found:
                self._desk.outputs.append(Evidence(self._desk.number, source, report.token, field, expected, found))

    def _unchecked(self, report: TradeReport) -> str | None:
        """Why a report can be neither right nor wrong here."""
        if self._desk.trades.has_forgotten(report.token):
            return f"token is {report.token}; it is too old to be checked"
        reached = self._reached.get(report.formation)
        if reached is None or (report.formation != self._formation and report.token > reached):
            return f"token is {report.token} of formation {report.formation}, which is not in the order: it was lost"
        return None


def _messages(ordered: Ordered) -> Iterator[tuple[int, int, bytes]]:
    """The messages of a token as (number, source, payload). A fragment is no message of a floor: it is refused."""
    for span in ordered.spans:
        for sequence, body, count, is_fragment in blocks(span):
            payloads = [b""] if is_fragment else unpack_messages(body, count)
            for number, payload in enumerate(payloads, sequence):
                yield number, span.source, payload


# One replica of the floor through everything that can befall its site: it goes on, or is rebuilt from the journal.
#
# A floor follows one order. When the ring takes tokens back that a site has already released (after a Break), the
# floor that applied them is no longer the floor of the order: what they traded is named as void, and the floor of what
# is left comes from the journal. Nobody has to tell the replica which tokens were taken back: a formation that begins
# at or below the last token that was applied says it, whether or not it is the one that broke.

Past: TypeAlias = Callable[[], Iterable[Ordered]]
"""What the journal of the site holds and the site has released, from the first token on."""


class Replica:
    """The floor of one site."""

    def __init__(self, new: Callable[[], Floor], past: Past) -> None:
        self._new = new
        self._past = past
        self.rebuilt = -1  # how often, since it was made
        self.floor = new()
        self.rebuild()

    def rebuild(self) -> None:
        """Begin anew, from what the journal holds. What it says of the past was said before."""
        self.floor = self._new()
        self.rebuilt += 1
        for ordered in self._past():
            self.floor.apply(ordered)

    def deliver(self, ordered: Ordered) -> list[Output]:
        """The site has released Msg(e)."""
        return self.floor.apply(ordered)

    def turn(self, change: FormationChange) -> list[Output]:
        """The site has noted a formation."""
        lost = change.token <= self.floor.token
        outputs = self.floor.turn(replace(change, broken=True) if lost else change)
        if lost:
            self.rebuild()
        return outputs
