"""`fairtape bench …`: benchmarks, their options and the tables that they print."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, steps
from fairtape.core.errors import UserError
from fairtape.core.timing import PROFILES

if TYPE_CHECKING:
    from fairtape.bench.results import Result, Results

ROUNDS_MAX: Final = 100
ROUNDS: Final = 3
LONG_SECONDS: Final = 30.0  # longer rounds run once by default

LABELS: Final = {
    "receivers": "receivers",
    "message_bytes": "message size, bytes",
    "seconds": "seconds per round",
    "rounds": "rounds",
    "on_time_messages_per_s": "metro: highest rate with at most 1 % late, messages/s",
    "lan_on_time_messages_per_s": "lan: highest rate with at most 1 % late, messages/s",
    "flood_messages_per_s": "metro: messages/s of a flood",
    "flood_late_fraction": "metro: share of a flood released late",
    "flood_requests": "metro: repair requests under a flood",
    "flood_datagrams_dropped": "metro: datagrams dropped by full buffers under a flood",
    "flood_reformations": "metro: reformations under a flood",
    "lan_flood_messages_per_s": "lan: messages/s of a flood",
    "lan_flood_late_fraction": "lan: share of a flood released late",
    "cpu_us_per_message": "metro: processor time per message, µs, source and all sites",
    "source_cpu_us_per_message": "metro: processor time per message, µs, source",
    "site_cpu_us_per_message": "metro: processor time per message, µs, one site",
    "train_messages_per_s": "messages/s, bare UDP with the same packets in trains",
    "train_share": "ratio of the flood to it",
    "cpu_floor_us_per_message": "µs per message of seals, hashes and the kernel alone",
    "cpu_floor_share": "their share of the ring's processor time",
    "disk_messages_per_s": "messages/s, the journals alone, written sequentially and synced",
    "disk_share": "ratio of the flood to it",
    "spread_p50_us": "9 metro sites: µs from the first release of a token to the last, p50",
    "spread_p99_us": "9 metro sites: µs from the first release of a token to the last, p99",
    "lan_spread_p50_us": "lan: µs from the first release of a token to the last, p50",
    "lan_spread_p99_us": "lan: µs from the first release of a token to the last, p99",
    "idle_core_share": "metro: share of a core that an idle site takes",
    "lan_idle_core_share": "lan: share of a core that an idle site takes",
    "process_memory_mib": "metro: memory of the largest process, MiB",
    "lan_process_memory_mib": "lan: memory of the largest process, MiB",
    "deployed_real_time": "real-time scheduling of these sites (SCHED_RR)",
    "messages_per_s": "messages/s, delivered by all receivers in one order",
    "bare_messages_per_s": "messages/s, bare UDP with the same packets",
    "ratio": "ratio",
    "one_order": "one order",
    "bare_packets_per_s": "packets/s, bare UDP",
    "late_fraction": "share of messages released late",
    "recovery_requests": "repair requests",
    "datagrams_dropped": "datagrams dropped by full buffers",
    "memory_mib": "memory of a receiver, MiB: at start, warm, at end",
    "stolen_fraction": "share of processor time stolen by the host",
    "failures": "failures declared",
    "messages_per_s_1kb": "messages/s of 1,000 bytes",
    "messages_per_s_1_receiver": "messages/s with 1 receiver",
    "messages_per_s_8_receivers": "messages/s with 8 receivers",
    "messages_per_s_unsealed": "messages/s without seals",
    "real_time": "real-time scheduling (SCHED_RR)",
    "bare_sleep_error_p50_us": "bare programs that sleep: µs after the instant, p50",
    "bare_sleep_error_p99_us": "bare programs that sleep: µs after the instant, p99",
    "single_releases": "one at a time: releases, late ones included",
    "single_late_releases": "one at a time: late releases",
    "single_release_error_p50_us": "one at a time: µs after the commit instant, p50",
    "single_release_error_p99_us": "one at a time: µs after the commit instant, p99",
    "single_release_error_max_us": "one at a time: µs after the commit instant, max",
    "single_latency_p50_ms": "one at a time: ms from publish to release, p50",
    "single_latency_p99_ms": "one at a time: ms from publish to release, p99",
    "single_stolen_fraction": "one at a time: share of processor time stolen",
    "lossy_releases": "3 senders, 1 % loss: releases, late ones included",
    "lossy_late_releases": "3 senders, 1 % loss: late releases",
    "lossy_release_error_p50_us": "3 senders, 1 % loss: µs after the commit instant, p50",
    "lossy_release_error_p99_us": "3 senders, 1 % loss: µs after the commit instant, p99",
    "lossy_latency_p50_ms": "3 senders, 1 % loss: ms from publish to release, p50",
    "lossy_latency_p99_ms": "3 senders, 1 % loss: ms from publish to release, p99",
    "lossy_stolen_fraction": "3 senders, 1 % loss: share of processor time stolen",
    "other_programs_share": "share of the processors that other programs used",
    "rounds_discarded": "rounds discarded, because that was more than 5 %",
}
"""Labels of the printed table. The JSON output has all results, by their names."""

SOURCES_MAX: Final = 4_000  # in one process: an address book has at most 4,096 nodes
SOURCES: Final = (400, 1_000)


def source_labels(counts: Sequence[int]) -> dict[str, str]:
    """Labels of `bench sources`, for one source and for these numbers of sources."""
    labels = {"message_bytes": "message size, bytes", "seconds": "seconds per round", "rounds": "rounds"}
    for prefix, pattern in (("", "blocks of 20 messages"), ("single_", "single messages")):
        for count in (1, *counts):
            named = f"{pattern}, {count:,} {'source' if count == 1 else 'sources'}"
            labels |= {
                f"{prefix}cost_us_{count}": f"{named}: µs of the publisher per message",
                f"{prefix}cost_ratio_{count}": f"{named}: ratio to one source",
                f"{prefix}site_cost_us_{count}": f"{named}: µs of a site per message",
                f"{prefix}site_cost_ratio_{count}": f"{named}: ratio to one source",
                f"{prefix}late_fraction_{count}": f"{named}: share of messages released late",
                f"{prefix}messages_per_s_{count}": f"{named}: messages/s released",
            }
    return labels | {
        "accept_us_per_block_1": "µs of a receiver per full block, one source",
        "accept_us_per_block_8": "µs of a receiver per full block, 8 sources in turn",
        "other_programs_share": LABELS["other_programs_share"],
        "rounds_discarded": LABELS["rounds_discarded"],
    }


EDGE_LABELS: Final = {
    "websocket_customers": "WebSocket customers served, of one stripe",
    "websocket_customers_asked": "customers requested",
    "websocket_messages_per_s": "messages/s to each customer",
    "websocket_p50_ms": "ms from the release to the customer, p50",
    "websocket_p99_ms": "ms from the release to the customer, p99",
    "websocket_max_ms": "ms from the release to the customer, max",
    "websocket_faults": "customers with a gap, a duplicate or a lost connection",
    "websocket_told_delayed": "the server reported that it was behind",
    "websocket_real_time": "real-time scheduling (SCHED_RR)",
    "websocket_server_core_share": "load of the server's core",
    "websocket_frames_per_core_s": "frames/s per core of the server",
    "bare_websocket_frames_per_core_s": "frames/s per core, a bare program with the same frames",
    "websocket_stolen_fraction": "share of processor time stolen by the host",
    "arrow_messages_per_s": "client, messages/s per core as Arrow batches",
    "bare_arrow_messages_per_s": "messages/s per core, the same columns from memory",
    "record_messages_per_s": "client, messages/s per core as single records",
    "bare_record_messages_per_s": "messages/s per core, bare tuples from memory",
    "itch_messages_per_s": "ITCH 5.0 to Arrow, messages/s per core",
    "bare_itch_messages_per_s": "messages/s per core, a bare loop over the lengths",
}

FLOOR_LABELS: Final = {
    "orders_per_s": "orders/s, the continuous engine on one core",
    "floor_orders_per_s": "orders/s, the whole floor: decoded, reserved, matched, settled",
    "peer": "the fastest peer",
    "peer_orders_per_s": "orders/s, the fastest peer with the same orders",
    "ratio": "ratio",
    "fix_messages_per_s": "FIX messages/s per core",
    "simplefix_messages_per_s": "FIX messages/s, simplefix with the same bytes",
    "fix_ratio": "FIX ratio",
    "fix_peer": "FIX",
    "settled_trades_per_s": "trades/s settled to SQLite, each token durable",
}

JOURNAL_LABELS: Final = {
    "segments": "segments of the old journal",
    "append_ratio": "appending a token, ratio to a journal of 10 segments",
    "sync_ratio": "a sync, ratio",
    "poll_ratio": "a poll of a follower, ratio",
    "open_ratio": "opening for writing, ratio",
    "follow_ratio": "opening for reading at the live end, ratio",
    "catchup_ratio": "a site that catches up from anywhere, ratio",
    "retransmit_ratio": "looking up a message by its number and by its time, ratio",
    "append_us": "appending a token, µs",
    "sync_us": "a sync, µs of the site's thread",
    "poll_us": "a poll of a follower, µs",
    "open_us": "opening for writing, µs",
    "follow_us": "opening for reading at the live end, µs",
    "catchup_us": "a site that catches up from anywhere, µs",
    "retransmit_us": "looking up a message by its number and by its time, µs",
    "ring_late_fraction": "a metro ring with old journals: share of messages released late",
    "ring_new_late_fraction": "a metro ring with new journals: share of messages released late",
    "ring_reformations": "a metro ring with old journals: reformations",
    "ring_new_reformations": "a metro ring with new journals: reformations",
}

CATCHUP_LABELS: Final = {
    "bytes": "journal of the new site, bytes",
    "seconds": "level after, s",
    "link_seconds": "time that the bytes need on the link, s",
    "ratio": "ratio",
    "member_seconds": "member after, s",
    "mib_per_s": "journal received, MiB/s",
    "messages_per_s": "journal received, messages/s",
    "ring_late_fraction": "share of messages that the ring released late meanwhile",
    "ring_reformations": "reformations meanwhile",
}

ORDINARY_LABELS: Final = {
    "sites": "sites",
    "profile": "profile that fairtape init chose",
    "minutes": "minutes, with 500 trades/s and another program that keeps a core busy",
    "real_time": "real-time scheduling (SCHED_RR)",
    "late_fraction": "share of messages released late",
    "reformations": "reformations",
    "pace_changes": "changes of the pace",
    "guaranteed_delay_ms": "guaranteed delay, ms",
    "requests": "repair requests",
    "web_customers": "WebSocket customers",
    "web_overloads": "times that the web server reported an overload",
    "web_p50_ms": "ms from the release to the customer, p50",
    "web_p99_ms": "ms from the release to the customer, p99",
    "web_max_ms": "ms from the release to the customer, max",
}

PIPELINE_LABELS: Final = {
    "source_rows_per_s": "a journal into Spark, messages/s",
    "source_trades_per_s": "a journal into Spark as trades, messages/s",
    "ingest_rows_per_s": "a journal into a Delta table, messages/s",
    "ingest_trades_per_s": "a journal into a Delta table as trades, messages/s",
    "bars_rows_per_s": "one-second bars, trades/s",
    "bars_first_rows_per_s": "one-second bars, trades/s of the first round",
    "duckdb_rows_per_s": "one-second bars by DuckDB, trades/s",
    "polars_rows_per_s": "one-second bars by Polars, trades/s",
    "duckdb_ratio": "bars, ratio of Spark to DuckDB",
    "bars_core_ratio": "bars, ratio of two cores to one",
    "stream_p50_ms": "ms from the release at a site to the row in the table, p50",
    "stream_p99_ms": "ms from the release at a site to the row in the table, p99",
}

MEMORY_LABELS: Final = {
    "journal_bytes": "journal size, bytes",
    "messages": "messages",
    "messages_per_s": "messages/s into the table",
    "driver_mib": "memory of the driver in each fifth, MiB",
    "java_mib": "memory of Java in each fifth, MiB",
    "workers_mib": "memory of Python workers in each fifth, MiB",
    "growth": "growth from the second fifth to the last",
}

FIXED_MAX: Final = 1e-3  # below it, Python would print an exponent
SHARE_DIGITS: Final = 6

REAL_TIME_TEXT: Final = {
    True: "granted: other programs do not delay releases",
    False: "refused (needs root or CAP_SYS_NICE): other programs may delay releases",
}


@click.group()
def bench() -> None:
    """Measure fairtape on this machine, next to a baseline."""


@bench.command()
@click.option("--receivers", type=click.IntRange(1, 32), default=3, show_default=True, help="Sites in the ring.")
@click.option("--size", type=click.IntRange(16, 1_348), default=64, show_default=True, help="Message size in bytes.")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 3_600), default=5.0, show_default=True, help="Measured time of a round."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, ROUNDS_MAX),
    help=f"Number of rounds.  [default: {ROUNDS}, or 1 if a round takes more than {LONG_SECONDS:g} s]",
)
@click.option(
    "--only",
    type=click.Choice(["all", "on-time", "spread", "idle", "throughput", "latency"]),
    default="all",
    show_default=True,
    help="Run this part only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def ring(
    ctx: click.Context, *, receivers: int, size: int, seconds: float, rounds: int | None, only: str, as_json: bool
) -> None:
    """Rate on time, cost and release spread of one ring.

    \b
    on-time     three sites of `fairtape init`, K = 1: the highest rate
                with at most 1 % late, a flood, processor time
    spread      from the first release of a token to the last: 9 sites
                with the timing `metro`, and the ring with `lan`
    idle        processor time of a site without messages
    throughput  receivers alone, K = 0, and bare UDP packet by packet
    latency     release error and latency, also under loss

    All parts take some six minutes. The first three run a deployment, as `fairtape up` does, with the timings `metro`
    and `lan`. Rates are tried for two seconds each, a tenth apart; a rate is carried if 98 % of it were released. The
    yardsticks are bare UDP with the same packets in trains, what seals, hashes and the kernel alone cost, and as many
    files written sequentially. Messages are sealed, in datagrams of 1,400 bytes, and journals are on.

    Results are medians of the rounds, printed with minimum and maximum, because the speed of a virtual machine varies.
    Late releases are counted, and included in all results. A round in which other programs used more than 5 % of the
    processors is discarded and repeated; if it never gets better, the results are invalid. The processor time that the
    host of a virtual machine took is printed too.

    Latency is measured with real-time scheduling (SCHED_RR) if the kernel grants it, which needs root or CAP_SYS_NICE:
    then ordinary programs cannot delay a release. If it is refused, the results include the wait for other programs.
    The report says which was the case. Throughput is always measured without it. As many bare programs that only sleep
    until the same instants show what the machine allows: no release can be more exact. During the measurement an idle
    loop keeps each processor awake, as `idle=poll` does on a dedicated machine, because the host of a virtual machine
    is slow to wake a sleeping processor.

    A long run shows that memory stays flat: --only throughput --seconds 300. Only the last segments of its journals are
    kept, about 200 MB for each receiver. The exit code is 1 if the results are invalid, for example if the receivers
    delivered different orders or a site declared a failure. A result below its goal is reported on standard error.
    """  # noqa: D301 - click means the one character \b
    from fairtape.bench.ring import measure_ring
    from fairtape.deployment.process.children import ChildExited

    if rounds is None:
        rounds = ROUNDS if seconds <= LONG_SECONDS else 1
    try:
        with steps(quiet=as_json) as step:
            results = measure_ring(receivers=receivers, size=size, seconds=seconds, rounds=rounds, only=only, step=step)
    except ChildExited as exited:
        raise UserError(str(exited)) from None
    click.echo(json.dumps(results) if as_json else _table(results, LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option(
    "--sources",
    "counts",
    type=click.IntRange(2, SOURCES_MAX),
    multiple=True,
    default=SOURCES,
    show_default=True,
    help="Sources in one process; may be repeated.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.5, 3_600), default=2.0, show_default=True, help="Measured time of a run."
)
@click.option(
    "--rounds", type=click.IntRange(1, ROUNDS_MAX), default=ROUNDS, show_default=True, help="Number of rounds."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def sources(ctx: click.Context, *, counts: tuple[int, ...], seconds: float, rounds: int, as_json: bool) -> None:
    """Cost of a message when many sources share a process.

    \b
    blocks           every millisecond one of the sources publishes
                     20 messages of 64 bytes, which fill a block
    single messages  every millisecond 20 of the sources publish one
                     message each, and each message is a block

    That is 20,000 messages per second in total, into a deployment of three metro sites with K = 1. One source publishes
    the same in the same steps. Cost is processor time of the whole process, of the publisher and of a site, per
    message. Rounds are interleaved; results are their medians, printed with minimum and maximum. A round in which other
    programs used more than 5 % of the processors is discarded and repeated.

    At last the blocks of one source, and of eight that take turns, are put into a receive buffer without a network.

    The exit code is 1 if the results are invalid: if more than 1 % of the messages of a round was late, the ring did
    not keep up, and its cost means nothing. A result below its goal is reported on standard error.
    """  # noqa: D301 - click means the one character \b
    from fairtape.bench.sources import measure_sources
    from fairtape.deployment.process.children import ChildExited

    counts = tuple(dict.fromkeys(counts))
    try:
        with steps(quiet=as_json) as step:
            results = measure_sources(counts=counts, seconds=seconds, rounds=rounds, step=step)
    except ChildExited as exited:
        raise UserError(str(exited)) from None
    click.echo(json.dumps(results) if as_json else _table(results, source_labels(counts)))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Kills, each in a new ring.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Timing of the deployment.  [default: lan]")
@click.option("--cities", is_flag=True, help="Nine sites in nine cities, with their delays and 1 % loss.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def failover(ctx: click.Context, *, rounds: int, profile: str | None, cities: bool, as_json: bool) -> None:
    """Time without deliveries after a site is killed.

    Runs a deployment of `fairtape init` with three sites and two reformation servers, each a process. Beside each
    surviving site a source publishes 1,000 messages per second. The token site is killed with SIGKILL and restarted two
    seconds later.

    With --cities nine sites are in nine cities, as in `fairtape demo`. Three sources publish 100 messages per second
    each, and the site whose turn is next is killed.

    The results are the worst of all rounds. The exit code is 1 if a message was lost or never acknowledged, if the
    sites hold different orders, or if the killed site did not rejoin in time.
    """
    from fairtape.bench.failover import is_sound, measure_failover

    if cities and profile is not None:
        raise UserError(f"--profile is {profile!r}, and --cities has the profile wan; leave one of them out")
    with steps(quiet=as_json) as step:
        results = measure_failover(rounds=rounds, profile=profile or "lan", cities=cities, step=step)
    click.echo(json.dumps(results) if as_json else _failover_table(results))
    ctx.exit(0 if is_sound(results) else EXIT_BROKEN)


@bench.command()
@click.option(
    "--customers", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="WebSocket customers."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 3_600),
    default=5.0,
    show_default=True,
    help="Measured time of a WebSocket run.",
)
@click.option(
    "--messages",
    type=click.IntRange(1_000, 100_000_000),
    default=1_000_000,
    show_default=True,
    help="Messages in the journal and in the ITCH file.",
)
@click.option(
    "--only",
    type=click.Choice(["all", "websocket", "client", "itch"]),
    default="all",
    show_default=True,
    help="Run this part only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def edge(ctx: click.Context, *, customers: int, seconds: float, messages: int, only: str, as_json: bool) -> None:
    """Throughput and delay of one site's customers.

    \b
    websocket  one server on one core sends 1,000 messages/s of one
               stripe to each customer; customers are bare sockets
               in another process
    client     fairtape.connect reads a journal as Arrow batches and
               as single records
    itch       an ITCH 5.0 file with the message mix of a day is
               decoded to Arrow

    A server keeps up if every customer gets every message once, and 99 % of them within 50 ms of the release. If it
    does not keep up in three tries, the number of customers is halved, and so on. The report states the number served,
    and whether real-time scheduling was granted.

    The rates of the client and of ITCH are messages per second of processor time of all threads: what one core can do.
    They are medians of three rounds, printed with minimum and maximum. The baseline, measured in the same run, is a
    bare Python program on the same bytes.

    The exit code is 1 if the results are invalid. A result below its goal is reported on standard error.
    """  # noqa: D301 - click means the one character \b
    from fairtape.bench.edge import measure_edge
    from fairtape.deployment.process.children import ChildExited

    try:
        with steps(quiet=as_json) as step:
            results = measure_edge(customers=customers, seconds=seconds, messages=messages, only=only, step=step)
    except ChildExited as exited:
        raise UserError(str(exited)) from None
    click.echo(json.dumps(results) if as_json else _table(results, EDGE_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option(
    "--orders",
    type=click.IntRange(1_000, 10_000_000),
    default=200_000,
    show_default=True,
    help="Orders and cancels in the flow.",
)
@click.option(
    "--trades", type=click.IntRange(500, 10_000_000), default=40_000, show_default=True, help="Trades to settle."
)
@click.option(
    "--rounds", type=click.IntRange(1, ROUNDS_MAX), default=ROUNDS, show_default=True, help="Rounds of each engine."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def floor(ctx: click.Context, *, orders: int, trades: int, rounds: int, as_json: bool) -> None:
    """Throughput of matching, FIX parsing and settlement.

    The engine applies a mixed flow of orders and cancels. Installed pure-Python peers apply the same flow in the same
    run: see the extra `peers`. FIX is parsed from one file by fairtape and by simplefix. Trades are settled to a SQLite
    file with full synchronisation, one transaction per token. Settlement is measured in wall time, which includes the
    wait for the disk, the rest in processor time. Each result is the best of its rounds; FIX results are medians.

    The exit code is 1 if the results are invalid. A result below its goal is reported on standard error.
    """
    from fairtape.bench.floor import measure_floor

    with steps(quiet=as_json) as step:
        results = measure_floor(orders=orders, rounds=rounds, trades=trades, step=step)
    click.echo(json.dumps(results) if as_json else _table(results, FLOOR_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option(
    "--segments",
    type=click.IntRange(100, 1_000_000),
    default=100_000,
    show_default=True,
    help="Segments of the old journal.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 1_000), default=30, show_default=True, help="Rounds of each operation."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 3_600),
    default=10.0,
    show_default=True,
    help="Measured time of a round of the ring.",
)
@click.option(
    "--only",
    type=click.Choice(["all", "costs", "ring"]),
    default="all",
    show_default=True,
    help="Run this part only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def journal(ctx: click.Context, *, segments: int, rounds: int, seconds: float, only: str, as_json: bool) -> None:
    """Cost of an old journal, next to one of ten segments.

    \b
    costs  append, sync, poll, open, and look up entries of any age;
           both journals in turn, the ratio of medians
    ring   three sites with the timing `metro` and 1,000 messages/s,
           with old journals and with new ones in turn

    Segments are as small as they can be, 1 KiB, and are written by the writer of a site. With the default, this takes
    some three minutes, and 2 GB of the folder for temporary files, which are removed in the end. A small segment is
    quick to read, so that any cost of finding it shows. What takes as long whatever the age, such as the wait for the
    disk in a sync, is not measured.

    A ratio above 1.2, or a ring whose old journals make more messages late, is reported on standard error.
    """  # noqa: D301 - click means the one character \b
    from fairtape.bench.journal import measure_journal

    with steps(quiet=as_json) as step:
        results = measure_journal(segments=segments, rounds=rounds, seconds=seconds, only=only, step=step)
    click.echo(json.dumps(results) if as_json else _table(results, JOURNAL_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option(
    "--gigabytes",
    type=click.FloatRange(0.001, 1_000),
    default=1.0,
    show_default=True,
    help="Size of the journal; three times as much must be free.",
)
@click.option(
    "--rate", type=click.IntRange(1, 1_000_000), default=20_000, show_default=True, help="Messages per second."
)
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="wan", show_default=True, help="Timing of the deployment."
)
@click.option(
    "--megabits",
    type=click.IntRange(0, 100_000),
    default=400,
    show_default=True,
    help="Rate of the new site's link, 150 ms away (needs root); 0: loopback, without a limit or delay.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def catchup(ctx: click.Context, *, gigabytes: float, rate: int, profile: str, megabits: int, as_json: bool) -> None:
    """Time until a new site has the journal of a ring that runs.

    Two sites run with a load. A third one joins with an empty journal, over a link of limited rate. It is level when it
    is behind by no more than the load of two seconds. `ratio` is that time to the time that the bytes need on the link.
    The link is made of network namespaces, which needs root. A ratio above 2 is reported on standard error.
    """
    from fairtape.bench.catchup import CatchUpPlan, measure_catchup

    with steps(quiet=as_json) as step:
        results = measure_catchup(CatchUpPlan(gigabytes, rate, profile, megabits), step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": 1}, CATCHUP_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option(
    "--minutes", type=click.FloatRange(0.05, 24 * 60), default=5.0, show_default=True, help="Time of the measurement."
)
@click.option("--sites", type=click.IntRange(1, 96), help="Sites.  [default: that of fairtape init]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def ordinary(ctx: click.Context, *, minutes: float, sites: int | None, as_json: bool) -> None:
    """On-time releases with default settings beside a busy program.

    Runs what a new user would, as processes: fairtape init, up, listen, web with ten WebSocket customers, and publish
    with 500 trades/s. Another program keeps one core busy meanwhile. The folder is temporary; Ctrl-C ends everything.

    The goals are no reformation, at most 0.5 % late, a guaranteed delay of at most 60 ms, and a web server that keeps
    up. A result that misses its goal is reported on standard error. The exit code is 1 if the results are invalid.
    """
    from fairtape.bench.ordinary import measure_ordinary

    with steps(quiet=as_json) as step:
        results = measure_ordinary(minutes=minutes, sites=sites, step=step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": 1}, ORDINARY_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option("--master", default="local[2]", show_default=True, help="Spark master.")
@click.option(
    "--messages",
    type=click.IntRange(100_000, 500_000_000),
    default=8_000_000,
    show_default=True,
    help="Messages in the journal.",
)
@click.option(
    "--trades",
    type=click.IntRange(100_000, 500_000_000),
    default=20_000_000,
    show_default=True,
    help="Trades that are aggregated to bars.",
)
@click.option(
    "--rounds", type=click.IntRange(1, ROUNDS_MAX), default=ROUNDS, show_default=True, help="Number of rounds."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def pipeline(*, master: str, messages: int, trades: int, rounds: int, as_json: bool) -> None:
    """Throughput of journals into tables on Spark.

    A journal of 64-byte trades is read into Spark and into a Delta table. One-second bars of 5,000 symbols are computed
    from Parquet files by Spark, DuckDB and Polars in turn. A live journal is streamed into a table with the default
    trigger. Each result is the best of its rounds. Bars have five more rounds, of all three engines, because Java
    compiles while it runs. The start of Spark is not measured.

    A result below its goal is reported on standard error.
    """
    from fairtape.cli.pipeline import needed

    needed()
    from fairtape.bench.pipeline import PipelineSetting, measure_pipeline, shortfalls_of

    setting = PipelineSetting(master=master, messages=messages, bar_trades=trades, rounds=rounds)
    with steps(quiet=as_json) as step:
        results = measure_pipeline(setting, step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": rounds}, PIPELINE_LABELS))
    for sentence in shortfalls_of(results):
        click.echo(f"fairtape: {sentence}", err=True)


@bench.command()
@click.option("--master", default="local[2]", show_default=True, help="Spark master.")
@click.option(
    "--gigabytes", type=click.FloatRange(0.05, 1_000), default=5.0, show_default=True, help="Size of the journal."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def memory(*, master: str, gigabytes: float, as_json: bool) -> None:
    """Memory use while a long journal streams into a table.

    Prints the peak memory of this process, of Java and of Python workers in each fifth of the run, in MiB, and the
    growth of their sum: the last fifth relative to the second.
    """
    from fairtape.cli.pipeline import needed

    needed()
    from fairtape.bench.pipeline import measure_stream_memory

    with steps(quiet=as_json) as step:
        results = measure_stream_memory(gigabytes, master, step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": 1}, MEMORY_LABELS))


def _end(ctx: click.Context, results: "Results", *remarks: str) -> None:
    """Print these remarks to standard error, and exit; with 1 if the results are invalid."""
    for name in remarks:
        sentences = results[name]
        assert isinstance(sentences, list)
        for sentence in sentences:
            click.echo(f"fairtape: {sentence}", err=True)
    ctx.exit(EXIT_BROKEN if results["problems"] else 0)


def _failover_table(results: dict[str, Any]) -> str:
    from fairtape.cli.operate import returned

    rows = [
        ("longest silence at other sites", f"{results['stall_s']:.3f} s (goal: {results['stall_s_promised']:g} s)"),
        ("failure detected after", f"{results['detect_s']:.3f} s"),
        ("new formation after", f"{results['formation_s']:.3f} s"),
        ("longest silence when the site rejoined", f"{results['return_stall_s']:.3f} s"),
        ("member again", returned(results)),
        ("messages published", f"{results['published']:,}"),
        ("messages lost", f"{results['lost']:,}"),
        ("one order at all sites", "yes" if results["one_order"] else "no"),
        *((f"{name}, default settings", f"{seconds:g} s of silence") for name, seconds in results["anchors_s"].items()),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:{width}}  {text}" for label, text in rows)


def _table(results: "Results", labels: Mapping[str, str]) -> str:
    shown = {name: label for name, label in labels.items() if name in results}
    width = max(map(len, shown.values()))
    return "\n".join(f"{label:{width}}  {_text(results, name)}" for name, label in shown.items())


def _text(results: "Results", name: str) -> str:
    result = results[name]
    if name.endswith("real_time"):
        return REAL_TIME_TEXT[bool(result)]
    if isinstance(result, list):
        return "; ".join(map(_item, result)) or "none"
    least, most = results.get(f"{name}_min"), results.get(f"{name}_max")
    if least is None or most is None or results["rounds"] == 1:
        return _plain(result)
    return f"{_plain(result)} ({_plain(least)} to {_plain(most)})"


def _item(item: str | float | dict[str, float]) -> str:
    """A sentence, a number, or the memory of one receiver."""
    if isinstance(item, str):
        return item
    if isinstance(item, int | float):
        return f"{item:,}"
    return f"{item['at_start']:g}, {item['warm']:g}, {item['at_end']:g}"


def _plain(result: "Result") -> str:
    if isinstance(result, bool):
        return "yes" if result else "no"
    if isinstance(result, float) and 0 < abs(result) < FIXED_MAX:
        return f"{result:.{SHARE_DIGITS}f}".rstrip("0")
    return f"{result:,}" if isinstance(result, int | float) else str(result)
