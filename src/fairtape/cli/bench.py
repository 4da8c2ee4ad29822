"""`fairtape bench …`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, steps
from fairtape.core.errors import UserError
from fairtape.core.timing import PROFILES

if TYPE_CHECKING:
    pass

ROUNDS_MAX: Final = 100
ROUNDS: Final = 3
LONG_SECONDS: Final = 30.0  # a round above this length is the only one, unless more are asked for

LABELS: Final = {
    "receivers": "receivers",
    "message_bytes": "bytes of a message",
    "seconds": "seconds of a round",
    "rounds": "rounds",
    "messages_per_s": "messages/s, delivered by all in one order",
    "bare_messages_per_s": "messages/s, bare UDP with the same packets",
    "ratio": "ratio",
    "one_order": "one order",
    "bare_packets_per_s": "packets/s, bare UDP",
    "late_fraction": "share of messages released late",
    "recovery_requests": "requests for repair",
    "datagrams_dropped": "datagrams dropped by full buffers",
    "memory_mib": "memory of a receiver, MiB: at start, warm, at end",
    "stolen_fraction": "share of the processors that the host took away",
    "failures": "failures declared",
    "messages_per_s_1kb": "messages/s of 1,000 bytes",
    "messages_per_s_1_receiver": "messages/s with 1 receiver",
    "messages_per_s_8_receivers": "messages/s with 8 receivers",
    "messages_per_s_unsealed": "messages/s without seals",
    "real_time": "real-time scheduling (SCHED_RR)",
    "bare_sleep_error_p50_us": "bare programs that sleep: µs after the instant, p50",
    "bare_sleep_error_p99_us": "bare programs that sleep: µs after the instant, p99",
    "single_releases": "one at a time: releases, late ones included",
    "single_late_releases": "one at a time: of these late",
    "single_release_error_p50_us": "one at a time: µs after the commit instant, p50",
    "single_release_error_p99_us": "one at a time: µs after the commit instant, p99",
    "single_release_error_max_us": "one at a time: µs after the commit instant, max",
    "single_latency_p50_ms": "one at a time: ms from publish to release, p50",
    "single_latency_p99_ms": "one at a time: ms from publish to release, p99",
    "single_stolen_fraction": "one at a time: share of the processors taken away",
    "lossy_releases": "3 senders, 1 % loss: releases, late ones included",
    "lossy_late_releases": "3 senders, 1 % loss: of these late",
    "lossy_release_error_p50_us": "3 senders, 1 % loss: µs after the commit instant, p50",
    "lossy_release_error_p99_us": "3 senders, 1 % loss: µs after the commit instant, p99",
    "lossy_latency_p50_ms": "3 senders, 1 % loss: ms from publish to release, p50",
    "lossy_latency_p99_ms": "3 senders, 1 % loss: ms from publish to release, p99",
    "lossy_stolen_fraction": "3 senders, 1 % loss: share of the processors taken away",
}
"""What a person reads; a program gets all figures by their names."""

EDGE_LABELS: Final = {
    "websocket_customers": "WebSocket customers carried, of one stripe",
    "websocket_customers_asked": "customers asked for",
    "websocket_messages_per_s": "messages/s to each of them",
    "websocket_p50_ms": "ms from the release to the customer, p50",
    "websocket_p99_ms": "ms from the release to the customer, p99",
    "websocket_max_ms": "ms from the release to the customer, max",
    "websocket_faults": "customers with a gap, a double or a lost line",
    "websocket_told_delayed": "the server said that it could not keep up",
    "websocket_real_time": "real-time scheduling (SCHED_RR)",
    "websocket_server_core_share": "share of its core that the server used",
    "websocket_frames_per_core_s": "frames that a second of its core writes",
    "bare_websocket_frames_per_core_s": "frames of that size, a bare program",
    "websocket_stolen_fraction": "share of the processors that the host took away",
    "arrow_messages_per_s": "client, messages/s of one core as Arrow batches",
    "bare_arrow_messages_per_s": "the same columns from memory",
    "record_messages_per_s": "client, messages/s of one core as single records",
    "bare_record_messages_per_s": "bare tuples from memory",
    "itch_messages_per_s": "ITCH 5.0 to Arrow, messages/s of one core",
    "bare_itch_messages_per_s": "a bare loop from length to length",
}

FLOOR_LABELS: Final = {
    "orders_per_s": "orders/s, the continuous engine on one core",
    "floor_orders_per_s": "orders/s, the whole floor: decoded, reserved, matched, settled",
    "peer": "the fastest peer",
    "peer_orders_per_s": "orders/s, that peer with the same orders",
    "ratio": "ratio",
    "fix_messages_per_s": "FIX messages/s read on one core",
    "simplefix_messages_per_s": "FIX messages/s, simplefix with the same bytes",
    "fix_ratio": "ratio of FIX",
    "fix_peer": "FIX",
    "settled_trades_per_s": "trades/s settled to SQLite, each token durable",
}

PIPELINE_LABELS: Final = {
    "source_rows_per_s": "a journal into Spark, messages/s",
    "source_trades_per_s": "a journal into Spark as trades, messages/s",
    "ingest_rows_per_s": "a journal into a Delta table, messages/s",
    "ingest_trades_per_s": "a journal into a Delta table as trades, messages/s",
    "bars_rows_per_s": "one-second bars, trades/s",
    "bars_first_rows_per_s": "the same when Java has compiled nothing yet",
    "duckdb_rows_per_s": "the same by DuckDB",
    "polars_rows_per_s": "the same by Polars",
    "duckdb_ratio": "Spark by DuckDB",
    "bars_core_ratio": "two cores by one",
    "stream_p50_ms": "ms from the release at a site to the row in the table, p50",
    "stream_p99_ms": "ms from the release at a site to the row in the table, p99",
}

MEMORY_LABELS: Final = {
    "journal_bytes": "bytes of the journal",
    "messages": "messages",
    "messages_per_s": "messages/s into the table",
    "driver_mib": "memory of the driver in each fifth, MiB",
    "java_mib": "memory of Java in each fifth, MiB",
    "workers_mib": "memory of Python workers in each fifth, MiB",
    "growth": "growth from the second fifth to the last",
}

REAL_TIME_WORDS: Final = {
    True: "granted: no ordinary program holds up a release",
    False: "refused (it needs root or CAP_SYS_NICE): releases also wait for other programs",
}


@click.group()
def bench() -> None:
    """Measure fairtape here, next to a yardstick."""


@bench.command()
@click.option("--receivers", type=click.IntRange(1, 32), default=3, show_default=True, help="Sites in the ring.")
@click.option("--size", type=click.IntRange(16, 1_348), default=64, show_default=True, help="Bytes of a message.")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 3_600), default=5.0, show_default=True, help="Measured time of a round."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, ROUNDS_MAX),
    help=f"How often each is measured.  [default: {ROUNDS}, or 1 where a round takes more than {LONG_SECONDS:g} s]",
)
@click.option(
    "--only", type=click.Choice(["all", "throughput", "latency"]), default="all", show_default=True, help="Which part."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def ring(
    ctx: click.Context, *, receivers: int, size: int, seconds: float, rounds: int | None, only: str, as_json: bool
) -> None:
    """Throughput, release error and latency under loss of one ring.

    Separate processes on loopback multicast, sealed, with journals, datagrams of 1,400 bytes. Bare UDP is measured in
    the same run: a Python sender and Python receivers that move the same packets one by one and do nothing else.

    The main figures are medians of the rounds, with the least and the most beside them: a virtual machine is not
    equally fast at all times, and what its host took away is printed too. Times of release are read in the application
    that gets the messages. Late releases are in all figures, and counted.

    Latency is measured under real-time scheduling (SCHED_RR) where the kernel grants it, which takes root or
    CAP_SYS_NICE: then no ordinary program of this machine can hold up a release. Where it is refused, the figures
    include the wait for other programs. The report says which it was; throughput is always measured without it. As many
    bare programs that do nothing but sleep until the same instants show what the machine itself allows: no release can
    be more exact than they are. Meanwhile a program that does nothing keeps each processor awake, as `idle=poll` does
    on a dedicated machine: the host of a virtual one takes its time to wake a processor that sleeps.

    A long run shows that memory stays flat: --only throughput --seconds 300. Of its journals only the last segments are
    kept, some 200 MB for each receiver. The exit code is 1 when the figures mean nothing, such as when the order was
    not one or a site declared a failure.
    """
    from fairtape.bench.report import measure_ring
    from fairtape.deployment.process.children import ChildExited

    if rounds is None:
        rounds = ROUNDS if seconds <= LONG_SECONDS else 1
    try:
        with steps(quiet=as_json) as step:
            results = measure_ring(receivers=receivers, size=size, seconds=seconds, rounds=rounds, only=only, step=step)
    except ChildExited as exited:
        raise UserError(str(exited)) from None
    click.echo(json.dumps(results) if as_json else _table(results, LABELS))
    _end(ctx, results, "problems")


@bench.command()
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Kills, each in a new ring.")
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="lan", show_default=True, help="Timing of the deployment."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def failover(ctx: click.Context, *, rounds: int, profile: str, as_json: bool) -> None:
    """How long the others are silent when a site is killed.

    Three sites and two reformation servers as `fairtape init` makes them, each a process. Beside each site that will
    survive, a source publishes 1,000 messages per second; the site whose turn it is gets kill -9. It is started again
    two seconds later.

    The figures are the worst of all rounds. The exit code is 1 when a message was lost or never acknowledged, when the
    order is not one, or when the killed site did not come back while it was waited for.
    """
    from fairtape.bench.failover import is_sound, measure_failover

    with steps(quiet=as_json) as step:
        results = measure_failover(rounds=rounds, profile=profile, step=step)
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
    help="Messages in the journal, and in the file of ITCH.",
)
@click.option(
    "--only",
    type=click.Choice(["all", "websocket", "client", "itch"]),
    default="all",
    show_default=True,
    help="Which part.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def edge(ctx: click.Context, *, customers: int, seconds: float, messages: int, only: str, as_json: bool) -> None:
    """What one site's customers get, and how fast.

    \b
    websocket  one server on one core feeds customers of one stripe
               1,000 messages/s; they are bare sockets in another
               process that reads the clock when bytes come
    client     fairtape.connect reads a journal: as Arrow batches,
               and record by record
    itch       a file of ITCH 5.0 with the mix of a day becomes Arrow

    A server keeps up when every customer had every message once, and 99 % of them within 50 ms of the release. Where
    as many as were asked for cannot be carried in three tries, half as many are tried, and so on; the report says how
    many there were. Real-time scheduling is asked for, and the report says whether it was granted.

    Of the client and of ITCH, messages are divided by the processor time of all threads: what one core carries. These
    figures are medians of three rounds, with the least and the most beside them. What a bare Python program does with
    the same bytes is measured in the same run.

    The exit code is 1 when the figures mean nothing. A figure below its promise is said on standard error.
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
    "--orders", type=click.IntRange(1_000, 10_000_000), default=200_000, show_default=True, help="Of the flow."
)
@click.option("--trades", type=click.IntRange(500, 10_000_000), default=40_000, show_default=True, help="To settle.")
@click.option("--rounds", type=click.IntRange(1, ROUNDS_MAX), default=ROUNDS, show_default=True, help="Of each engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def floor(ctx: click.Context, *, orders: int, trades: int, rounds: int, as_json: bool) -> None:
    """How fast orders are matched, FIX is read and trades are settled.

    The engine applies a mixed flow of orders and cancels, and pure-Python peers that are installed apply the same flow
    in the same run: see the extra `peers`. FIX is read from one file by us and by simplefix. Trades are settled to a
    SQLite file with full synchronisation, one transaction for each token; that time includes the wait for the disk,
    the others are of the processor. Each figure is the best of its rounds.

    The exit code is 1 when the figures mean nothing. A figure below its promise is said on standard error.
    """
    from fairtape.bench.trading import measure_trading

    with steps(quiet=as_json) as step:
        results = measure_trading(orders=orders, rounds=rounds, trades=trades, step=step)
    click.echo(json.dumps(results) if as_json else _table(results, FLOOR_LABELS))
    _end(ctx, results, "problems", "shortfalls")


@bench.command()
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option(
    "--messages",
    type=click.IntRange(100_000, 500_000_000),
    default=8_000_000,
    show_default=True,
    help="Messages of the journal.",
)
@click.option(
    "--trades",
    type=click.IntRange(100_000, 500_000_000),
    default=20_000_000,
    show_default=True,
    help="Trades that bars are made of.",
)
@click.option("--rounds", type=click.IntRange(1, ROUNDS_MAX), default=ROUNDS, show_default=True, help="How often.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def pipeline(*, master: str, messages: int, trades: int, rounds: int, as_json: bool) -> None:
    """How fast journals become tables on Spark.

    A journal of 64-byte trades is read into Spark and into a Delta table; one-second bars of 5,000 symbols are made of
    Parquet files by Spark, DuckDB and Polars in turn; a live journal is streamed into a table with the default trigger.
    Each figure is the best of its rounds; bars have five more, of all three, because Java compiles while it runs.
    Starting Spark is no part of any.

    A figure below its promise is said on standard error.
    """
    from fairtape.cli.pipeline_jobs import needed

    needed()
    from fairtape.bench.pipeline import PipelineSetting, measure_pipeline, shortfalls_of

    setting = PipelineSetting(master=master, messages=messages, bar_trades=trades, rounds=rounds)
    with steps(quiet=as_json) as step:
        results = measure_pipeline(setting, step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": rounds}, PIPELINE_LABELS))
    for sentence in shortfalls_of(results):
        click.echo(f"fairtape: {sentence}", err=True)


@bench.command()
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option(
    "--gigabytes", type=click.FloatRange(0.05, 1_000), default=5.0, show_default=True, help="Size of the journal."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def memory(*, master: str, gigabytes: float, as_json: bool) -> None:
    """Whether memory stays flat while a journal streams.

    A long journal is written and streamed into a table. The most that this process, Java and Python workers held is
    told for each fifth of the way, in MiB; the growth is that of all together, the last fifth by the second.
    """
    from fairtape.cli.pipeline_jobs import needed

    needed()
    from fairtape.bench.pipeline import measure_stream_memory

    with steps(quiet=as_json) as step:
        results = measure_stream_memory(gigabytes, master, step)
    click.echo(json.dumps(results) if as_json else _table({**results, "rounds": 1}, MEMORY_LABELS))


def _end(ctx: click.Context, results: "Results", *said: str) -> None:
    """Say what is wrong with the figures, and leave; with another code where they mean nothing."""
    for name in said:
        sentences = results[name]
        assert isinstance(sentences, list)
        for sentence in sentences:
            click.echo(f"fairtape: {sentence}", err=True)
    ctx.exit(EXIT_BROKEN if results["problems"] else 0)


def _failover_table(results: dict[str, Any]) -> str:
    from fairtape.cli.operate import returned

    rows = [
        ("longest silence at the others", f"{results['stall_s']:.3f} s (promised: {results['stall_s_promised']:g} s)"),
        ("detected after", f"{results['detect_s']:.3f} s"),
        ("a new formation after", f"{results['formation_s']:.3f} s"),
        ("longest silence when it came back", f"{results['return_stall_s']:.3f} s"),
        ("it was a member again", returned(results)),
        ("messages published", f"{results['published']:,}"),
        ("messages lost", f"{results['lost']:,}"),
        ("one order at all sites", "yes" if results["one_order"] else "no"),
        *((f"{name}, by default", f"{seconds:g} s of silence") for name, seconds in results["anchors_s"].items()),
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
        return REAL_TIME_WORDS[bool(result)]
    if isinstance(result, list):
        return "; ".join(map(_item, result)) or "none"
    least, most = results.get(f"{name}_min"), results.get(f"{name}_max")
    if least is None or most is None or results["rounds"] == 1:
        return _plain(result)
    return f"{_plain(result)} ({_plain(least)} to {_plain(most)})"


def _item(item: str | int | dict[str, float]) -> str:
    """A sentence, a number, or the memory of one receiver."""
    if isinstance(item, str):
        return item
    if isinstance(item, int):
        return f"{item:,}"
    return f"{item['at_start']:g}, {item['warm']:g}, {item['at_end']:g}"


def _plain(result: "Result") -> str:
    if isinstance(result, bool):
        return "yes" if result else "no"
    return f"{result:,}" if isinstance(result, int | float) else str(result)
