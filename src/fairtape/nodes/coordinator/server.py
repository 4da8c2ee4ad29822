"""The reformation server (X_R): leads or is a standby, and coordinates all loops of a stripe while it leads.

There are several servers, and one leads (decision 27, Leadership). They communicate only through the store, by
compare-and-set: the leader renews its claim; a standby that has seen the same claim for longer than its lease takes
over with the next term. The leader's lease starts when it sent the claim, the standby's wait when it saw it, so two
servers never act at the same time, whatever their clocks show. A new leader waits for the leases that the last one
granted.

The set of retired sites is kept in the log beside the formations, so that it survives the leader. It is numbered like
the formations of a loop, under a loop number that no loop has.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fairtape.core.effects import Effect, Notice, QueryStore, Send
from fairtape.core.formation_log import (
    ENTRIES_MAX,
    Claim,
    Claimed,
    Leadership,
    LogEntry,
    Recall,
    Recalled,
    Record,
    Recorded,
    StoreRequest,
    StoreResponse,
    Unavailable,
)
from fairtape.core.instants import MILLISECOND, NEVER, Duration, Instant
from fairtape.nodes.coordinator.leadership import RENEWALS, Lead
from fairtape.nodes.coordinator.plausibility import implausible_number
from fairtape.nodes.coordinator.primary_loop import PrimaryLoopCoordinator
from fairtape.nodes.coordinator.secondary_loops import SecondaryLoopCoordinator
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.membership.formation import LOOPS_MAX
from fairtape.ring.membership.layout import decode_formation, encode_formation
from fairtape.ring.membership.topology import Topology
from fairtape.wire.frames import Malformed, NodeId, kind_of
from fairtape.wire.membership import (
    HistoryChunk,
    OperatorCommand,
    OperatorVerb,
    SiteReport,
    decode_membership,
    is_membership,
)
from fairtape.wire.seals import Keys

RETIRED_SITES_LOG: Final = LOOPS_MAX  # the loop number of the set of retired sites
_VERSION: Final = b"\1"


class RetiredSites:
    """The retired sites, and whether the log has recorded them."""

    def __init__(self, retired: set[NodeId]) -> None:
        """The set is shared with the coordinators."""
        self.retired = retired
        self._number = 0
        self._recorded: bytes = encode_retired_sites(())

    def recall(self, entry: LogEntry | None) -> None:
        """Take over what the log says; without an entry no site is retired."""
        self.retired.clear()
        self._number, self._recorded = 0, encode_retired_sites(())
        if entry is not None:
            self.retired |= decode_retired_sites(entry.formation)
            self.recorded(entry)

    def recorded(self, entry: LogEntry) -> None:
        """The log has this entry."""
        self._number, self._recorded = entry.number, entry.formation

    def proposal(self, term: int) -> LogEntry | None:
        """The entry to record; None if the log is up to date."""
        wanted = encode_retired_sites(self.retired)
        return None if wanted == self._recorded else LogEntry(RETIRED_SITES_LOG, self._number + 1, term, wanted)


def encode_retired_sites(retired: Collection[NodeId]) -> bytes:
    return _VERSION + b"".join(site.to_bytes(4) for site in sorted(retired))


def decode_retired_sites(encoded: bytes) -> set[NodeId]:
    """Decode the set. Raises `Malformed` for anything that `encode_retired_sites` does not produce."""
    body = encoded[1:]
    if encoded[:1] != _VERSION or len(body) % 4:
        raise Malformed("unknown version or wrong length of the retired sites")
    return {int.from_bytes(body[start : start + 4]) for start in range(0, len(body), 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReformerConfig:
    """The configuration of a reformation server."""

    me: NodeId
    operator: NodeId  # whose commands it executes
    stripe: int = 0
    deployment: int = 0  # the digest of the deployment file that it has read; 0: none
    leader_lease: Duration = 300 * MILLISECOND  # how long a leader may act on one renewal, at least


_COUNTER_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {SiteReport: "standing", OperatorCommand: "order", HistoryChunk: "past"}  # keys of the status file
)


class Reformer:
    """One incarnation of one reformation server."""

    def __init__(
        self,
        config: ReformerConfig,
        topology: Topology,
        *,
        keys: Keys,
        born_at: Instant,
        incarnation: int | None = None,
        clock_bound: Callable[[], Duration] = lambda: 0,
    ) -> None:
        """`incarnation` is higher than every serial number of an earlier one; None: the clock was never set back."""
        self.config = config
        self.counts: Counter[str] = Counter()
        self.primary = PrimaryLoopCoordinator(topology, me=config.me, stripe=config.stripe, clock_bound=clock_bound)
        self.secondary = {
            loop.number: SecondaryLoopCoordinator(
                loop, me=config.me, stripe=config.stripe, incarnation_of=self._incarnation_of
            )
            for loop in topology.loops[1:]
        }
        for coordinator in self.secondary.values():
            coordinator.retired = self.primary.retired
        self._retired_sites = RetiredSites(self.primary.retired)
        self._homes = topology.homes()
        self._clock_bound = clock_bound
        self._clock_error_max = topology.primary.timing.clock_error_max
        first_serial = born_at if incarnation is None else incarnation
        self._authenticator = MessageAuthenticator(me=config.me, keys=keys, peers=keys.sites, first_serial=first_serial)
        self._effects: list[Effect] = []
        self._lead = Lead(config.me, lease_min=config.leader_lease, first_renewal=first_serial)
        self._ask_at: Instant = born_at  # when to read or renew the leadership
        self._asked: StoreRequest | None = None  # the pending request: one at a time
        self._asked_at: Instant = 0
        self._runs_at: Instant = 0  # when this server runs again at the latest, while a request is pending
        self._stood_still = False  # while it was pending
        self._renewed = False  # by the last request
        self._stores = self.primary.stores
        self._other_files: dict[NodeId, int] = {}  # the sites that have read another deployment file, and its digest
        self._disbelieved: set[NodeId] = set()  # the sites of which a report was refused
        self._known_term = 0  # that a site obeys, and the store does not know
        self._waiting: deque[StoreRequest] = deque()
        self._pause_until: Instant = 0  # after an error of the store

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        self._check_clock(now)
        try:
            self._receive(datagram, now)
        except Malformed:
            self.counts["malformed"] += 1
        self._flush(now)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        self._check_clock(now)
        self._check_leadership(now)
        if self.leads(now):
            self.primary.wake(now)
            for coordinator in self.secondary.values():
                coordinator.wake(now)
        self._flush(now)

    def deadline(self) -> Instant | None:
        if self._asked is not None:
            earliest = self._runs_at
        else:
            earliest = min(self._ask_at, self._pause_until) if self._waiting else self._ask_at
        if self._lead.term:
            earliest = min(earliest, self._lead.until, self.primary.deadline())
            for coordinator in self.secondary.values():
                earliest = min(earliest, coordinator.deadline())
        return None if earliest == NEVER else earliest

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _check_clock(self, now: Instant) -> None:
        """A server with an untrusted clock must not lead, because leases are measured by it.

        A clock that was set back must not delay the check of the leadership.
        """
        if self._doubts_clock and self._lead.term:
            self._step_down("its clock error is too large", now)
        self._ask_at = min(self._ask_at, now + self._lead.renewal_period)
        self._pause_until = min(self._pause_until, now + self._lead.renewal_period)
        self._notice_standstill(now)
        self._lead.wait(now)

    def _notice_standstill(self, now: Instant) -> None:
        """A server that does not run for a lease loses its lead, however fast the store is."""
        lease = self.config.leader_lease
        if self._asked is None:
            return
        self._stood_still = self._stood_still or now - self._runs_at > lease
        if now >= self._runs_at or self._runs_at - now > lease:  # or its clock was set back
            self._runs_at = now + lease // RENEWALS

    @property
    def _doubts_clock(self) -> bool:
        return self._clock_bound() > self._clock_error_max

    def _coordinators(self) -> list[PrimaryLoopCoordinator | SecondaryLoopCoordinator]:
        return [self.primary, *self.secondary.values()]

    def _incarnation_of(self, site: NodeId) -> int | None:
        known = self.primary.known.get(site)
        return known.report.incarnation if known is not None else None

    @property
    def leadership(self) -> Leadership | None:
        """As the store showed it last."""
        return self._lead.shown

    @property
    def store(self) -> int:
        """The identity of its formation store; 0: it has not led yet."""
        return self._stores.own

    @property
    def sites_of_other_stores(self) -> tuple[NodeId, ...]:
        """The sites that follow another formation store, and are left alone."""
        return tuple(sorted(self._stores.others))

    def warnings(self, now: Instant) -> list[str]:
        """What the operator has to mend, as far as the leader knows."""
        if not self.leads(now):
            return []
        stores = [_of_another_store(site) for site in self.sites_of_other_stores]
        return stores + [_of_another_file(site, self.config.me) for site in sorted(self._other_files)]

    def leads(self, now: Instant) -> bool:
        """Whether this server leads now."""
        return self._lead.leads(now)

    # The store.

    def answered(self, answer: StoreResponse, now: Instant) -> None:
        """The response of the store to the pending request."""
        self._check_clock(now)
        question, self._asked = self._asked, None
        self._renewed = isinstance(question, Claim)
        if not isinstance(answer, Unavailable) and not self._stood_still:
            self._lead.measure(now - self._asked_at)
            self.primary.recording_delay = 2 * self._lead.call_max  # a renewal may come first
        match answer:
            case Recalled():
                self._recalled(answer, now)
            case Claimed():
                self._show(answer.leadership, now)
            case Recorded():
                self._recorded(answer.entries, now)
            case _:  # refused, or no response: read the store again
                self.counts["store_trouble"] += 1
                self._pause_until = now + self._lead.renewal_period
                if isinstance(question, Record):
                    self._waiting.appendleft(Recall())
        self._flush(now)

    def _ask(self, question: StoreRequest, now: Instant) -> None:
        self._asked, self._asked_at = question, now
        self._runs_at, self._stood_still = now + self.config.leader_lease // RENEWALS, False
        self._effects.append(QueryStore(question))

    def _check_leadership(self, now: Instant) -> None:
        if self._lead.term and now >= self._lead.until:
            self._step_down("its lease has expired", now)
        if self._asked is None and self._ask_at <= now:
            self._ask_at = now + self._lead.renewal_period
            self._ask(self._next_question(now), now)

    def _next_question(self, now: Instant) -> StoreRequest:
        """Renew the lead, take over, or read the store."""
        lead = self._lead
        if self._doubts_clock:
            lead.forget_claims(now)
            return Recall()
        if lead.term:
            return lead.renew(now)
        if lead.may_begin(now) or not lead.may_take_over:
            return Recall()
        return lead.take_over(now, term_min=self._known_term + 1)

    def _show(self, leadership: Leadership | None, now: Instant) -> None:
        """What the store shows may end the lead, or let this server go on at once."""
        lead = self._lead
        lead.show(leadership, now)
        if lead.term and (not lead.until or leadership is None or leadership.term != lead.term):
            self._step_down("another server leads", now)
        self._hurry(now)

    def _hurry(self, now: Instant) -> None:
        """A server that may take over, or begin to lead, does not wait."""
        if not self._lead.term and not self._doubts_clock and self._lead.may_take_over:
            self._ask_at = now

    def _recalled(self, answer: Recalled, now: Instant) -> None:
        self._show(answer.leadership, now)
        if self._doubts_clock:
            return
        if self._lead.term and answer.store != self._stores.own:
            self._step_down("its store was replaced by another one", now)
        elif self._lead.term:
            self._compare(answer.latest, now)
        elif self._lead.may_begin(now):
            self._begin(answer.latest, answer.store, now)

    def _begin(self, latest: tuple[LogEntry, ...], store: int, now: Instant) -> None:
        """Lead: these are the formations, now that no other server can change them."""
        self._lead.begin()
        self._other_files.clear()
        self._ask_at = self._lead.renew_at
        term = self._lead.term
        entries = {entry.loop: entry for entry in latest}
        self._retired_sites.recall(entries.pop(RETIRED_SITES_LOG, None))
        formations = {loop: decode_formation(entry.formation) for loop, entry in entries.items()}
        self._stores.lead(store, formations.get(0))
        self.primary.lead(formations.get(0), term, now)
        for loop, coordinator in self.secondary.items():
            coordinator.store = store
            coordinator.lead(formations.get(loop), term, now)
        self._effects.append(Notice(f"reformation server {self.config.me} leads, term {term}"))

    def _step_down(self, why: str, now: Instant) -> None:
        self._lead.end()
        self._waiting.clear()
        self._effects.append(Notice(f"reformation server {self.config.me} no longer leads: {why}"))
        self._hurry(now)

    def _compare(self, latest: tuple[LogEntry, ...], now: Instant) -> None:
        """After a request without a response: a proposal is in the log, or will be recorded again."""
        for entry in latest:
            if entry.loop == RETIRED_SITES_LOG:
                self._retired_sites.recorded(entry)
            coordinator = self.primary if entry.loop == 0 else self.secondary.get(entry.loop)
            wanted = coordinator.proposal if coordinator is not None else None
            if wanted is not None and encode_formation(wanted) == entry.formation:
                self._recorded((entry,), now)

    def _recorded(self, entries: tuple[LogEntry, ...], now: Instant) -> None:
        for entry in entries:
            if entry.loop == RETIRED_SITES_LOG:
                self._retired_sites.recorded(entry)
            coordinator = self.primary if entry.loop == 0 else self.secondary.get(entry.loop)
            if self.leads(now) and coordinator is not None and coordinator.proposal is not None:
                coordinator.recorded(decode_formation(entry.formation), now)

    def _flush(self, now: Instant) -> None:
        """Send the messages of the coordinators, and record their proposals."""
        if self.leads(now):
            self._join_loops(now)
            self._record_proposals()
        for coordinator in self._coordinators():
            for site, message in coordinator.outbox if self.leads(now) else ():
                self._effects.append(Send(site, [self._authenticator.for_membership(message)]))
            self._effects += [Notice(text) for text in coordinator.notices]
            coordinator.outbox.clear()
            coordinator.notices.clear()
        if self._waiting and self._asked is None and now >= self._pause_until and not self._renews_first(now):
            self._ask(self._waiting.popleft(), now)

    def _renews_first(self, now: Instant) -> bool:
        """A renewal that is due comes before other requests; but each second request may be another one."""
        return self._ask_at <= now and not self._renewed

    def _join_loops(self, now: Instant) -> None:
        """Pass the members of each loop to the coordinators of the loops below it."""
        formations = {0: self.primary.formation, **{n: each.formation for n, each in self.secondary.items()}}
        for coordinator in self.secondary.values():
            above = formations.get(coordinator.loop.parent)
            parents = above.members if above is not None else ()
            if parents != coordinator.parents:
                coordinator.parents = parents
                coordinator.wake(now)

    def _record_proposals(self) -> None:
        if self._asked is not None and isinstance(self._asked, Record):
            return
        if any(isinstance(question, Record) for question in self._waiting):
            return
        proposals = [each.proposal for each in self._coordinators() if each.proposal is not None]
        entries = [LogEntry(each.loop, each.number, self._lead.term, encode_formation(each)) for each in proposals]
        retired = self._retired_sites.proposal(self._lead.term)
        if retired is not None:
            entries.insert(0, retired)
        if entries:
            self._waiting.append(Record(tuple(entries[:ENTRIES_MAX])))

    # Datagrams.

    def _receive(self, datagram: bytes, now: Instant) -> None:
        if not is_membership(datagram):
            raise Malformed("not for a reformation server")
        kind_of(datagram)
        message = decode_membership(datagram)
        if message.stripe != self.config.stripe:
            raise Malformed("other stripe")
        refusal = self._authenticator.refusal(message, datagram, fresh=True)
        if refusal is None and not self.leads(now):
            refusal = "standing_by"
        self.counts[refusal or _COUNTER_NAMES.get(type(message), type(message).__name__.lower())] += 1
        if refusal is not None:
            return
        match message:
            case SiteReport():
                self._receive_report(message, now)
            case OperatorCommand():
                self._execute(message, now)
            case _:
                raise Malformed("not for a reformation server")

    def _receive_report(self, report: SiteReport, now: Instant) -> None:
        if report.sender not in self._homes:
            self.counts["stranger"] += 1
            return
        self._compare_file(report)
        if not self._follows_this_store(report):
            self.counts["other_store"] += 1
            self.primary.known.pop(report.sender, None)  # what it reported before it followed that one
            return
        if not self._believes(report, now):
            self.counts["implausible"] += 1
            return
        if report.term > self._lead.term:
            self._give_way(report, now)
            return
        if report.loop == 0:
            self.primary.receive_report(report, now)
        elif report.loop in self.secondary and report.store in (0, self._stores.own):
            self.secondary[report.loop].receive_report(report, now)

    def _follows_this_store(self, report: SiteReport) -> bool:
        """Whether this server may decide about a site (decision 63, One store)."""
        noted = report.store in self._stores.others.values()
        if self._stores.obeys(report):
            return True
        if not noted:
            self._effects.append(Notice(_of_another_store(report.sender)))
        return False

    def _believes(self, report: SiteReport, now: Instant) -> bool:
        """Whether a correct site may report these numbers (decision 74, Plausible reports)."""
        primary = self.primary
        below = self.secondary.get(report.loop)
        recorded = primary.formation if below is None else below.formation
        if primary.stores.is_declared_lost(report.store):
            recorded = None
        number = implausible_number(report, recorded, self._lead.term, primary.loop, now, timed=primary.topology.timed)
        if number is not None and report.sender not in self._disbelieved:
            self._disbelieved.add(report.sender)
            self._effects.append(Notice(f"site {report.sender} reports {number}, which cannot be: it is not believed"))
        return number is None

    def _compare_file(self, report: SiteReport) -> None:
        """A difference is a warning, and changes nothing (decision 64, One deployment file)."""
        if report.deployment in (0, self.config.deployment) or not self.config.deployment:
            self._other_files.pop(report.sender, None)
        elif self._other_files.get(report.sender) != report.deployment:
            self._other_files[report.sender] = report.deployment
            self._effects.append(Notice(_of_another_file(report.sender, self.config.me)))

    def _give_way(self, report: SiteReport, now: Instant) -> None:
        """A site obeys a later term, which the store has lost (decision 69, Lost formations): lead in a later one.

        The leader of that term may still be leading, so this server waits like any other.
        """
        self._known_term = max(self._known_term, report.term)
        self._lead.forget_claims(now)
        self._step_down(f"site {report.sender} knows term {report.term}", now)

    def _execute(self, command: OperatorCommand, now: Instant) -> None:
        if command.sender != self.config.operator:
            self.counts["not_the_operator"] += 1
            return
        match command.verb:
            case OperatorVerb.RETIRE:
                self.primary.retire(command.site, now)
            case OperatorVerb.ADMIT:
                self.primary.admit(command.site, now)
            case OperatorVerb.PLAN:
                self.primary.change_plan(command.site, now)
            case OperatorVerb.RESUME:
                self._resume(command, now)
            case OperatorVerb.ADOPT:
                adopted = self._stores.adopt() if command.site == self._stores.own else None
                self._effects += [Notice(adopted)] if adopted is not None else []

    def _resume(self, command: OperatorCommand, now: Instant) -> None:
        """A command that was delayed, or is repeated, ends no other halt than the one that the operator saw."""
        formation = self.primary.formation
        present = formation.number if formation is not None else 0
        if command.formation == present:
            self.primary.resume(now)
        else:
            self.counts["stale_order"] += 1


def _of_another_store(site: NodeId) -> str:
    return (
        f"site {site} follows another formation store: it is left alone; give all servers the same store, or, if the"
        " other one is lost, order: fairtape operate DIR adopt"
    )


def _of_another_file(site: NodeId, server: NodeId) -> str:
    return (
        f"site {site} has read another deployment file than server {server}: copy one file to both machines, and"
        " restart what has read the other one"
    )
