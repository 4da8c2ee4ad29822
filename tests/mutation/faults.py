"""Deliberate faults: each breaks one rule by a small change of the source; named tests must fail."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A rule, the change that breaks it, the tests that must fail, and the checker that must fire in a campaign."""

    name: str
    rule: str
    file: str  # in src/fairtape
    old: str
    new: str
    tests: tuple[str, ...]  # in tests
    guarantee: str | None = None  # the checker of the simulator that must fire


FAULTS: Final = (
    Fault(
        name="one request too many",
        rule="A receiver asks again while it has made fewer than `retries_max` requests (decision 2, Retry guard).",
        file="ring/receiver/recovery_tables.py",
        old="recovery.ack_retries + recovery.message_retries < recovery.retries_max",
        new="recovery.ack_retries + recovery.message_retries <= recovery.retries_max",
        tests=(
            "paper/test_figure_3.py",
            "unit/ring/test_recovery_tables.py",
            "paper/test_deadline.py::test_the_deadline_is_tight",
        ),
        guarantee="CompleteOrReforming",
    ),
    Fault(
        name="waits start again",
        rule="A token that follows a late one has waited with it: its deadline counts from its own instant (T-RMP §5).",
        file="ring/receiver/ack_timeout.py",
        old="max(self._due_at(self._watched), self._awake_since), now)",
        new="now, now)",
        tests=("paper/test_deadline.py::test_a_token_that_follows_a_late_one_has_no_later_deadline",),
    ),
    Fault(
        name="a held request extends its wait",
        rule="A wait that passes before the first request counts as made (decision 50, Request thresholds).",
        file="ring/receiver/recovery.py",
        old="self.expires_at = asks_at + recoveries.timing.retry_period",
        new="self.expires_at = max(asks_at, recoveries.requests_from(self.token)) + recoveries.timing.retry_period",
        tests=(
            "unit/ring/test_ack_lateness.py::test_waits_that_pass_before_the_first_request_count_as_made",
            "paper/test_deadline.py::test_the_deadline_is_the_same_where_acknowledgments_are_known_to_be_late",
        ),
    ),
    Fault(
        name="a repair is measured",
        rule="The arrival of a repair is not measured (decision 50, Request thresholds).",
        file="ring/receiver/ack_lateness.py",
        old="late = min(late, sent_at + timing.one_way_max - possible_at)",
        new="late = max(late, 0)",
        tests=("unit/ring/test_ack_lateness.py::test_the_arrival_of_a_repair_does_not_count",),
    ),
    Fault(
        name="a token commits before its predecessor",
        rule="Back to a faster pace the schedule pauses once, so that commit instants increase (decision 51, Pace).",
        file="ring/membership/reconfiguration.py",
        old="starts_at=max(present.scheduled_at(at_token), earliest),",
        new="starts_at=present.scheduled_at(at_token),",
        tests=("unit/nodes/test_pace.py::test_no_token_commits_before_the_one_that_precedes_it",),
    ),
    Fault(
        name="the pace of memory",
        rule="The present pace is that of the present formation, under any leader (decision 51, Pace).",
        file="nodes/coordinator/pace.py",
        old="pace = pace_of(present, self._topology)",
        new="pace: int | None = 1",
        tests=("unit/nodes/test_pace.py::test_a_new_leader_continues_with_the_pace_of_the_formation",),
    ),
    Fault(
        name="commit without K",
        rule="A message commits when K + 1 sites are known to hold it (decision 6, Commit).",
        file="ring/receiver/resilience.py",
        old="if turns > formation.resilience:\n            self._survives(token - formation.resilience)",
        new="if turns:\n            self._survives(token)",
        tests=("paper/test_commit.py", "unit/ring/test_resilience.py"),
        guarantee="SurvivesK",
    ),
    Fault(
        name="early release",
        rule="Nothing is released before t_e + commit_delay (decision 6, Commit).",
        file="ring/receiver/release.py",
        old="while self._ready and self._ready[0][1] <= now < self._lease_until:",
        new="while self._ready and now < self._lease_until:",
        tests=("paper/test_commit.py", "unit/ring/test_release.py"),
        guarantee="NeverEarly",
    ),
    Fault(
        name="late and silent",
        rule="A message that becomes ready after its commit instant is marked late (decision 6, Commit).",
        file="ring/receiver/release.py",
        old="self._ready.append((ordered, commit_at, unknown or now > commit_at))",
        new="self._ready.append((ordered, commit_at, False))",
        tests=("paper/test_commit.py", "unit/ring/test_release.py"),
        guarantee="ReleasedTogether",
    ),
    Fault(
        name="token accepted too soon",
        rule="A site accepts the token when it holds everything acknowledged before it (2001 §2).",
        file="ring/receiver/ordering.py",
        old=".next >= named.end for named in acknowledgment.ranges",
        new=".next >= named.first for named in acknowledgment.ranges",
        tests=("paper/test_token_ring.py", "unit/ring/test_ordering.py"),
    ),
    Fault(
        name="ahead of the schedule",
        rule="Ack(e) is sent at t_e, not before (T-RMP §3).",
        file="ring/receiver/token.py",
        old="return NEVER if self.held is None else self._formations.scheduled_at(self.held)",
        new="return NEVER if self.held is None else self._formations.latest.starts_at",
        tests=("paper/test_token_ring.py", "unit/ring/test_token.py"),
        guarantee="EverythingArrives",
    ),
    Fault(
        name="two assign",
        rule="A site that has sent Ack(e) acknowledges nothing more until its next turn (2001 §2).",
        file="ring/receiver/token.py",
        old='gives up the right to acknowledge."""\n        self.held = None',
        new='gives up the right to acknowledge."""\n        self.held = self.held and self.held + 1',
        tests=("paper/test_token_ring.py", "unit/ring/test_token.py"),
        guarantee="NeverRaises",
    ),
    Fault(
        name="numbers unchecked",
        rule="An acknowledgment must continue the sequence, or its site is reported (decision 3, Numbering).",
        file="ring/receiver/ordering.py",
        old="if acknowledgment.sequence != self.next_sequence:",
        new="if acknowledgment.sequence > TOKENS_AHEAD_MAX:",
        tests=("unit/ring/test_ordering.py", "unit/nodes/test_receiver.py"),
    ),
    Fault(
        name="forgotten too soon",
        rule="What all members hold is known after one round: t - m + 1, not t - m + 2 (2001 §2).",
        file="ring/receiver/resilience.py",
        old="token - len(formation.members) + 1)",
        new="token - len(formation.members) + 2)",
        tests=("paper/test_token_ring.py", "unit/ring/test_resilience.py"),
        guarantee="TrueClaims",
    ),
    Fault(
        name="forgotten by its source",
        rule="A source keeps what is acknowledged until K + 1 sites are known to hold it.",
        file="ring/sender/retention.py",
        old="self._proofs[0][0] <= token - self._resilience:",
        new="self._proofs[0][0] <= token:",
        tests=("unit/ring/test_retention.py", "unit/nodes/test_source.py"),
        guarantee="KeptUntilHeld",
    ),
    Fault(
        name="acknowledged by an abandoned formation",
        rule="A later formation may have begun before what an earlier one acknowledged: it is sent again.",
        file="ring/sender/transmission.py",
        old="        blocks = self._kept.take_all()",
        new="        blocks: list[Block] = []",
        tests=("unit/ring/test_retention.py", "unit/nodes/test_source.py"),
    ),
    Fault(
        name="sent before written",
        rule="Msg(e) is appended to the journal before Ack(e) leaves (decision 14, Append before Ack).",
        file="nodes/receiver.py",
        old="        taken = self._take_next(now)\n        assert taken\n"
        "        self._effects.append(Multicast(Channel.CONTROL, datagrams))\n",
        new="        self._effects.append(Multicast(Channel.CONTROL, datagrams))\n"
        "        taken = self._take_next(now)\n        assert taken\n",
        tests=("paper/test_token_ring.py", "unit/nodes/test_receiver.py"),
        guarantee="AppendBeforeAck",
    ),
    Fault(
        name="an ended incarnation",
        rule="An earlier incarnation is refused (decision 16, Incarnations end in the order).",
        file="ring/receiver/receive_buffer.py",
        old='        if stream.ended:\n            raise Malformed("earlier incarnation")\n',
        new="",
        tests=("unit/ring/test_receive_buffer.py", "unit/nodes/test_receiver.py"),
    ),
    Fault(
        name="one key for two incarnations",
        rule="Every incarnation of a source has a key of its own, so that no nonce covers two texts.",
        file="wire/seals.py",
        old="_CONTEXT.pack(stripe, source, incarnation)",
        new="_CONTEXT.pack(stripe, source, 0)",
        tests=(
            "unit/wire/test_seals.py::test_a_block_opens_only_for_its_stripe_source_and_incarnation",
            "unit/wire/test_seals.py::test_blocks_of_another_number_stripe_source_or_incarnation_share_no_key_stream",
        ),
    ),
    Fault(
        name="replays accepted",
        rule="A control datagram is accepted once.",
        file="wire/seals.py",
        old="if -ahead >= REPLAY_WINDOW or self._seen >> -ahead & 1:",
        new="if -ahead >= REPLAY_WINDOW:",
        tests=(
            "unit/nodes/test_message_authentication.py",
            "unit/nodes/test_source.py",
            "unit/wire/test_seals.py::test_a_serial_is_accepted_once",
        ),
    ),
    Fault(
        name="answers to forgeries",
        rule="Only a genuine repetition is answered: a forged datagram changes nothing.",
        file="nodes/receiver.py",
        old="        stream.seal.open(datagram, frame.first)  #",
        new="        #",
        tests=("unit/nodes/test_receiver.py",),
    ),
    Fault(
        name="no load in the acknowledgment",
        rule="Ack(e) reports how late its site releases and how much waits there; sources regulate to it.",
        file="nodes/receiver.py",
        old="load=self._loads.worst(load, formation.number, formation.timing.token_period),",
        new="load=(SiteLoad(), False),",
        tests=(
            "simulation/test_flow_control.py",
            "simulation/test_overload_run.py::test_every_guarantee_holds_in_the_overload_of_seed[3]",
        ),
    ),
    Fault(
        name="news of a formation to come",
        rule="A source learns of a formation by the tokens of that formation, not when it is planned.",
        file="ring/receiver/ordering.py",
        old="return self.formations.of(self.complete_through + 1)",
        new="return self.formations.latest",
        tests=(
            "unit/nodes/test_planned_formation.py",
            "simulation/test_overload_run.py::test_a_pace_that_changes_under_overload_starves_no_source",
        ),
    ),
    Fault(
        name="K tokens counted as time for repairs",
        rule="An acknowledgment is late by what the commit delay has besides its K tokens.",
        file="nodes/receiver.py",
        old="spare = max(timing.commit_delay - formation.resilience * timing.token_period, timing.token_period)",
        new="spare = timing.commit_delay",
        tests=("unit/nodes/test_receiver.py::test_an_acknowledgment_is_late_by_what_is_left_besides_its_k_tokens",),
    ),
    Fault(
        name="a timeout before what has arrived was read",
        rule="Before it reads, a site only releases and acknowledges what is due.",
        file="net/node_runtime.py",
        old="machine.advance(now)",
        new="machine.wake(now)",
        tests=("loopback/test_driver.py::test_a_site_keeps_its_instants_before_it_reads",),
    ),
    Fault(
        name="a burst of a whole window",
        rule="A burst is at most a quarter of the window.",
        file="ring/sender/window.py",
        old="return min(self.size // BURST_DIVISOR, BURST_MAX)",
        new="return min(self.size, BURST_MAX)",
        tests=("unit/ring/test_window.py",),
    ),
    Fault(
        name="a read for every repeated request",
        rule="The journal is read once for a site that repeats its request.",
        file="nodes/catchup.py",
        old="if is_pending or len(self._requests) >= REQUESTS_MAX:",
        new="if len(self._requests) >= REQUESTS_MAX:",
        tests=("unit/nodes/test_catchup_client.py",),
    ),
    Fault(
        name="a configured token period",
        rule="At a slower pace a source regulates to the period that the token has.",
        file="ring/sender/window.py",
        old="self.present = before * self._configured",
        new="pass",
        tests=("unit/ring/test_window.py",),
    ),
    Fault(
        name="a relayed load relayed again",
        rule="A member passes on only what another one reports of itself.",
        file="ring/load.py",
        old="if ack.relayed or load == NO_LOAD:",
        new="if load == NO_LOAD:",
        tests=("unit/ring/test_load.py",),
    ),
    Fault(
        name="a commit by another formation",
        rule="A token commits by the timing of its own formation.",
        file="ring/receiver/release.py",
        old="self._formations.numbered(ordered.formation)",
        new="self._formations.latest",
        tests=(
            "unit/ring/test_release.py::test_a_token_commits_by_the_timing_of_its_own_formation_though_that_has_ended",
        ),
    ),
    Fault(
        name="an unbounded turn",
        rule="A step reads a bounded slice of what has arrived before it looks again at what is due.",
        file="net/node_runtime.py",
        old="datagrams = source.receive(SLICE_MAX, until_empty=until_empty)",
        new="datagrams = source.receive(1 << 20, until_empty=until_empty)",
        tests=("loopback/test_driver.py",),
    ),
    Fault(
        name="late and silent at the hand-over",
        rule="A release is stamped when it is handed over, and marked late if that is too late.",
        file="net/node_runtime.py",
        old="late=release.late or released_at - commit_at > LATE_AFTER,",
        new="late=release.late,",
        tests=("loopback/test_driver.py",),
    ),
    Fault(
        name="a read extends the lead",
        rule="A lead counts from when the claim was sent that the store carried out (decision 67, Confirmed lead).",
        file="nodes/coordinator/leadership.py",
        old="self.until = sent_at + leadership.lease",
        new="self.until = now + leadership.lease",
        tests=(
            "unit/nodes/test_leadership.py::test_a_claim_whose_answer_was_lost_counts_from_when_it_was_sent",
            "simulation/test_leadership.py::test_a_refused_claim_and_a_read_extend_no_lead",
        ),
    ),
    Fault(
        name="a lease that ignores the store",
        rule="The leader's lease is four times the 99th percentile of its requests (decision 68, Leader's lease).",
        file="nodes/coordinator/leadership.py",
        old="max(self._lease_min, min(STORE_CALLS_PER_LEASE * self.call_max, LEASE_MAX))",
        new="self._lease_min",
        tests=(
            "unit/nodes/test_leadership.py::test_a_lease_is_as_long_as_several_requests_to_the_store",
            "simulation/test_leadership.py::test_a_slow_store_stops_the_ring_once_and_then_no_more",
        ),
    ),
)
