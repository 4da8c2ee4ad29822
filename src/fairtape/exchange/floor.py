"""The distributed trading floor: every replica applies the same rules to the same sequence. TRMP 2001 §7.3.

`apply` takes Msg(e) and returns the outputs that follow from it. It has no other input: no clock but the instant of the
token, no randomness, no external table. So equal sequences give equal trades, balances and outputs at every site, and a
floor rebuilt from a journal equals the floor that was lost.

**Money.** A gateway checks funds before it enters an order, but only the sequence decides: every replica rejects an
order whose account cannot pay *at its position in the sequence*. Two gateways that accept the same funds at the same
time therefore do no harm. What an order may cost stays reserved until the order is cancelled or its trades commit. The
proceeds of a trade can be spent when it commits, not before.

**Replays.** A request names its gateway and that gateway's increasing number. A request from another source, or with a
number that is not above the last, is rejected.

**Clocks.** Batch auctions and Dutch clocks advance with the instants of delivered tokens, before the messages of the
token are applied. Tokens without messages are not delivered, so a source sends a `Pulse` where a clock must not wait
for the next order.

**A Break.** A lost token takes its trades with it. A replica that has applied tokens from the break on reports all
their trades as void, and refuses further tokens until it is rebuilt from its journal, which the ring has cut to what
the others hold. Trades of earlier tokens, also tentative ones, are the same at all survivors and stay valid.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.spans import blocks
from fairtape.exchange.ledger import Ledger
from fairtape.exchange.market import Market, flaw_of
from fairtape.exchange.order_handling import FloorAccount, FloorLimits, OrderHandler
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
    decode,
    encode,
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
from fairtape.exchange.rules import Continuous
from fairtape.market.prices import ONE
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_KIND
from fairtape.wire.blocks import unpack_messages

Request: TypeAlias = NewOrder | Cancel | Replace | OpenMarket | Control | Funding

_TICKER: Final = bytes([TRADE_KIND])


class OutOfOrder(ValueError):
    """A token that does not follow the last one applied, or any token after a Break that requires a rebuild."""


class Floor:
    """All markets of one sequence, and their ledger."""

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
        self._handler = OrderHandler(commit_passes=commit_passes, limits=limits or FloorLimits())
        self._venue = venue
        self._operators = None if operators is None else frozenset(operators)  # None: every source may administer
        self._arbiters = None if arbiters is None else frozenset(arbiters)  # None: every source may report
        self._gateways: dict[int, int] = {}  # gateway -> its last number
        self._stale = False
        self._formation = 0  # formation of the last token that was applied
        self._formed_at = 0  # first token applied of that formation
        self._reached: OrderedDict[int, int] = OrderedDict()  # formation -> its last token that was applied

    # Input.

    def apply(self, ordered: Ordered) -> list[Output]:
        """Apply Msg(e), and return what follows from it."""
        self._follow(ordered.token)
        self._enter(ordered)
        self._commit(ordered.token)
        self._handler.at = ordered.acknowledged_at
        for market in self.markets.values():
            if type(market.rule) is not Continuous:
                self._handler.trade(market, market.advance(self._handler.at))
                self._handler.trigger_stops(market)
        for number, source, payload in _messages(ordered):
            self._handler.number = number
            self._apply_message(source, payload)
        self._handler.trades.close(ordered.formation, ordered.token)
        return self._drain()

    def pass_token(self, token: int, formation: int | None = None) -> list[Output]:
        """A token without messages has passed: trades may commit earlier. Calling this is optional.

        A token of a formation that has delivered nothing yet is ignored here: `TradeBook.commit` says why.
        """
        self._follow(token)
        if formation in (None, self._formation):
            self._commit(token)
        return self._drain()

    def on_formation(self, change: FormationChange) -> list[Output]:
        """A new formation takes over. Only a Break has consequences."""
        if not change.broken:
            return []
        lost = self.token >= change.token
        self._handler.outputs.append(Broken(change.token, change.sequence, lost))
        self._handler.outputs += [
            Voided(trade, committed) for trade, committed in self._handler.trades.since(change.token)
        ]
        self._stale = self._stale or lost
        return self._drain()

    # Queries.

    @property
    def token(self) -> int:
        return self._handler.token

    @property
    def ledger(self) -> Ledger:
        return self._handler.ledger

    @property
    def markets(self) -> Mapping[Symbol, Market]:
        return self._handler.markets

    @property
    def accounts(self) -> Mapping[str, FloorAccount]:
        """The accounts and their open orders."""
        return self._handler.accounts

    @property
    def trades_hash(self) -> bytes:
        """The digest of all trades so far: equal at replicas that have applied the same tokens."""
        return self._handler.trades.trades_hash

    @property
    def trade_count(self) -> int:
        return self._handler.trades.next_id - 1

    def report(self, token: int) -> bytes | None:
        """The arbiter's report on a token, as a message; None if the token made no trade."""
        report = self._handler.trades.report(token)
        return None if report is None else encode(report)

    def tentative(self) -> Iterator[Execution]:
        """The trades that have not committed yet."""
        return self._handler.trades.tentative()

    # Tokens.

    def _follow(self, token: int) -> None:
        if self._stale:
            raise OutOfOrder("the floor has applied tokens that are lost; rebuild it from the journal")
        if token <= self.token:
            raise OutOfOrder(f"token {token} came after token {self.token}; tokens must increase")
        self._handler.token = token

    def _enter(self, ordered: Ordered) -> None:
        if ordered.formation != self._formation:
            self._formation, self._formed_at = ordered.formation, ordered.token
        self._reached[ordered.formation] = ordered.token
        if len(self._reached) > self._handler.limits.formations_max:
            self._reached.popitem(last=False)

    def _commit(self, token: int) -> None:
        for trade in self._handler.trades.commit(token, self._formed_at):
            amount = trade.price * trade.quantity // ONE
            buyer, seller = self.ledger.accounts[trade.buyer], self.ledger.accounts[trade.seller]
            self.ledger.settle(buyer, seller, trade.symbol, trade.quantity, amount)
            self._handler.outputs.append(Committed(trade, token))
            self._handler.outputs.append(Printed(trade, self._venue))

    def _drain(self) -> list[Output]:
        outputs, self._handler.outputs = self._handler.outputs, []
        return outputs

    # Messages.

    def _apply_message(self, source: int, payload: bytes) -> None:
        if payload[:1] == _TICKER:
            return
        try:
            message = decode(payload)
        except BadOrder as error:
            self._handler.outputs.append(Rejected(self._handler.number, source, 0, "", "", str(error)))
            return
        if isinstance(message, TradeReport):
            self._check_report(source, message)
        elif not isinstance(message, Pulse):
            reason = self._replay_refusal(source, message.gateway, message.gateway_number) or self._apply_request(
                source, message
            )
            if reason is not None:
                self._reject(source, message, reason)

    def _reject(self, source: int, message: Request, reason: str) -> None:
        account = "" if isinstance(message, OpenMarket | Control) else message.account
        client_id = message.client_id if isinstance(message, NewOrder | Replace) else ""
        if isinstance(message, Cancel):
            client_id = message.order_id
        self._handler.outputs.append(
            Rejected(self._handler.number, source, message.gateway_number, account, client_id, reason)
        )

    def _replay_refusal(self, source: int, gateway: int, number: int) -> str | None:
        """Return why a request is a replay, or is not from the source that sent it."""
        if gateway != source:
            return f"gateway is {gateway}, but source {source} sent it: a request is accepted only from its own gateway"
        last = self._gateways.get(source)
        if last is None and len(self._gateways) == self._handler.limits.gateways_max:
            return f"gateway is {source}; the floor has its limit of {self._handler.limits.gateways_max} gateways"
        if last is not None and number <= last:
            return f"gateway_number is {number}; it must be above {last}: the request is a replay"
        self._gateways[source] = number
        return None

    def _apply_request(self, source: int, message: Request) -> str | None:
        """Carry out a request, or return why not."""
        if isinstance(message, NewOrder):
            return self._handler.enter(source, message)
        if isinstance(message, Cancel):
            return self._handler.cancel(message)
        if isinstance(message, Replace):
            return self._handler.replace(source, message)
        if self._operators is not None and source not in self._operators:
            return f"source {source} is not an operator; only operators open markets and fund accounts"
        if isinstance(message, Funding):
            return self._fund(message)
        return self._open(message) if isinstance(message, OpenMarket) else self._control(message)

    # Operators and arbiters.

    def _fund(self, funding: Funding) -> str | None:
        reason = self.ledger.fund(funding.account, funding.asset, funding.amount)
        if reason is not None:
            return reason
        if funding.account not in self.accounts:
            self._handler.accounts[funding.account] = FloorAccount(self.ledger.accounts[funding.account])
        self._handler.outputs.append(Funded(self._handler.number, funding.account, funding.asset, funding.amount))
        return None

    def _open(self, terms: OpenMarket) -> str | None:
        if (flaw := flaw_of(terms)) is not None:
            return flaw
        market = self.markets.get(terms.symbol)
        if market is not None:
            if (reason := market.change(terms, self._handler.at)) is not None:
                return reason
        elif len(self.markets) == self._handler.limits.symbols_max:
            return f"symbol is {terms.symbol}; the floor has its limit of {self._handler.limits.symbols_max} markets"
        else:
            self._handler.markets[terms.symbol] = Market(terms, self._handler.at)
        self._handler.outputs.append(
            MarketChanged(self._handler.number, terms.symbol, f"trades as {type(terms.rule).__name__}")
        )
        return None

    def _control(self, control: Control) -> str | None:
        market = self.markets.get(control.symbol)
        if market is None:
            return f"symbol is {control.symbol}; no such market is open"
        match control.action:
            case Action.HALT:
                market.halt(self._handler.at)
            case Action.RESUME:
                market.resume(self._handler.at)
            case Action.UNCROSS:
                fills = market.uncross()
                if fills is None:
                    return f"{control.symbol} trades as {type(market.rule).__name__}, which has no rounds to end"
                self._handler.trade(market, fills)
            case Action.CLOSE:
                market.close()
                del self._handler.markets[control.symbol]
        self._handler.outputs.append(MarketChanged(self._handler.number, control.symbol, control.action.name.lower()))
        self._handler.trigger_stops(market)
        return None

    def _check_report(self, source: int, report: TradeReport) -> None:
        """Compare the arbiter's report with this replica's own computation."""
        if self._arbiters is not None and source not in self._arbiters:
            self._handler.outputs.append(
                Rejected(self._handler.number, source, 0, "", "", f"source {source} is not an arbiter")
            )
            return
        if (reason := self._report_refusal(report)) is not None:
            self._handler.outputs.append(Rejected(self._handler.number, source, 0, "", "", reason))
            return
        own = self._handler.trades.report(report.token)
        count, digest = (0, "none") if own is None else (own.trade_count, own.trades_hash.hex())
        for field, expected, found in (
            ("trade_count", str(count), str(report.trade_count)),
            ("trades_hash", digest, report.trades_hash.hex()),
        ):
            if expected != found:
                self._handler.outputs.append(
                    Evidence(self._handler.number, source, report.token, field, expected, found)
                )

    def _report_refusal(self, report: TradeReport) -> str | None:
        """Return why a report can be neither confirmed nor refuted here."""
        if self._handler.trades.has_forgotten(report.token):
            return f"token is {report.token}; it is too old to be checked"
        reached = self._reached.get(report.formation)
        if reached is None or (report.formation != self._formation and report.token > reached):
            return f"token is {report.token} of formation {report.formation}, which is not in the sequence: it was lost"
        return None


def _messages(ordered: Ordered) -> Iterator[tuple[int, int, bytes]]:
    """The messages of a token as (number, source, payload); a fragment is an empty payload, which the floor rejects."""
    for span in ordered.spans:
        for sequence, body, count, is_fragment in blocks(span):
            payloads = [b""] if is_fragment else unpack_messages(body, count)
            for number, payload in enumerate(payloads, sequence):
                yield number, span.source, payload


class Replica:
    """The floor of one site, rebuilt from the site's journal whenever the ring revokes tokens that it has applied.

    After a Break the ring may revoke tokens that a site has already released. The replica needs no separate signal for
    that: a formation that begins at or below the last token applied revokes everything from its first token on, whether
    or not it is the formation that broke. Trades of revoked tokens are reported as void.
    """

    def __init__(self, new: Callable[[], Floor], released: Callable[[], Iterable[Ordered]]) -> None:
        """`released` reads the site's journal: all that the site has released, from the first token on."""
        self._new = new
        self._released = released
        self.floor = new()
        self.rebuild()

    def rebuild(self) -> None:
        """Start again from the journal. Outputs of the past are discarded: they were reported when they happened."""
        self.floor = self._new()
        for ordered in self._released():
            self.floor.apply(ordered)

    def deliver(self, ordered: Ordered) -> list[Output]:
        return self.floor.apply(ordered)

    def on_formation(self, change: FormationChange) -> list[Output]:
        """The site has recorded a new formation."""
        lost = change.token <= self.floor.token
        outputs = self.floor.on_formation(replace(change, broken=True) if lost else change)
        if lost:
            self.rebuild()
        return outputs
