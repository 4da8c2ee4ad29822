"""Fixed values of the edge: stripe plans, files of publishers and replay archives, and packets to customers."""

from collections.abc import Iterator
from pathlib import Path

from fairtape.core.effects import Deliver, FormationChange, Ordered, Span
from fairtape.edge.protocol.archive import SessionExtent
from fairtape.edge.protocol.effects import SendMulticast
from fairtape.edge.protocol.remulticast import Remulticaster
from fairtape.edge.protocol.sessions import Begun, Edition, Over, Reformed, StripePosition, encode_mark, encode_opaque
from fairtape.edge.service import replay_archive, stripe_numbering
from fairtape.edge.service.stripe_plans import mark_of
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from fairtape.market.notices import encode_notice
from fairtape.market.prices import ONE
from fairtape.market.stripe_files import canonical, digest
from fairtape.market.stripes import DAY, CoreStripe, EdgeStripe, Endpoint, StripePlan
from fairtape.market.trades import PublishedTrade, encode
from fairtape.wire.blocks import pack_messages
from golden.file_values import released
from golden.market_values import NOTICES

MIDNIGHT = 20_000 * DAY
NOON = MIDNIGHT + DAY // 2
UNLISTED = PublishedTrade(0, "NEW", -1, 7, NOON, 9, 0, "VENUE")  # a symbol and a venue that no plan names


def plan(version: int) -> StripePlan:
    """Two core stripes; each has stripes with symbols and one for all other messages."""
    names = {1: ("IBM", "GE", 'A"B\\C'), 2: tuple(f"SYM{place:03}" for place in range(30)), 3: (), 4: ("T",), 5: ()}
    core = tuple(
        CoreStripe(number=each, at=Endpoint(f"239.1.{each}.1", 17_171), bits_per_s_max=10**9) for each in (0, 1)
    )
    edge = tuple(
        EdgeStripe(
            number=number,
            core=number // 4,
            bits_per_s_max=10**8 + version,
            feeds=tuple((feed, Endpoint(f"239.2.{place}.{number}", 31_000)) for place, feed in enumerate("AB")),
            symbols=symbols,
            venues=("XNYS", "XLON") if number == 1 else (),
            opaque=not symbols,
        )
        for number, symbols in names.items()
    )
    return StripePlan(version=version, midnight_at=MIDNIGHT, core=core, edge=edge)


FIRST = Edition("FT", plan(1), 0)
SECOND = FIRST.following(plan(2), sequence=20, at=NOON + 20, formation=8)
THIRD = SECOND.following(plan(2), sequence=30, at=NOON + 30, formation=9)


def stripe_plan() -> Iterator[tuple[str, bytes | str]]:
    for version in (1, 2):
        yield f"plan {version}", canonical(plan(version)).decode()
        yield f"digest of plan {version}", digest(plan(version))
        yield f"mark of plan {version}", str(mark_of(plan(version)))
    for symbol in ("IBM", "T", "SYM007", "UNKNOWN", "OTHER"):
        yield f"stripes of {symbol}", f"core {plan(1).core_of(symbol)}, edge {plan(1).edge_of(symbol)}"
    for name, edition in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        yield f"sessions of the {name} edition", " ".join(edition.session(each.number) for each in edition.stripes)


def edge_files(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    latest = stripe_numbering.EdgeCheckpoint(StripePosition(THIRD, 44, (9, 8, 7), NOON, 9), 9, 40)
    fresh = stripe_numbering.EdgeCheckpoint(StripePosition.fresh(FIRST), 0, 0)
    for name, checkpoint in (("latest", latest), ("fresh", fresh)):
        path = stripe_numbering.checkpoint_path(folder, name)
        stripe_numbering.save_checkpoint(path, checkpoint)
        yield f"checkpoint {path.relative_to(folder).as_posix()}", path.read_text()
    sessions = [
        replay_archive.SessionExtents(
            edition, tuple(SessionExtent(place, edition is not THIRD) for place in (12, 9, 4))
        )
        for edition in (FIRST, SECOND, THIRD)
    ]
    positions = [StripePosition(FIRST, 10, (5, 4, 3), NOON, 7), StripePosition(SECOND, 25, (4, 4, 4), NOON + 25, 8)]
    path = replay_archive.snapshot_path(folder, "latest")
    replay_archive.save_snapshot(path, replay_archive.ArchiveSnapshot(latest, sessions, positions, 8))
    head, _, numbers = path.read_bytes().partition(b"\n")
    yield f"memory {path.relative_to(folder).as_posix()}, first line", head.decode()
    yield "memory, numbers", numbers


def delivery(sequence: int, payloads: list[bytes]) -> Deliver:
    count = len(payloads)
    span = Span(101, 1, sequence, count, sequence, (pack_messages(payloads),), (count,))
    ordered = Ordered(0, 8, sequence, sequence, count, NOON + sequence, (span,))
    return Deliver(ordered, released(ordered))


def edge_packets() -> Iterator[tuple[str, bytes | str]]:
    for name, mark in (("begun", Begun(20, 1, 2)), ("over", Over(20, 2, 0)), ("reformed", Reformed(20, 8, True))):
        yield f"mark {name}", encode_mark(mark, DAY // 2)
    parts = encode_opaque(bytes(range(90)), sequence=20, source=101, fragment=True, since=DAY // 2, size_max=80)
    yield from ((f"opaque message, part {place}", part) for place, part in enumerate(parts))
    yield "request", encode_request(MoldRequest("FT00100001", 17, 5))
    remulticaster = Remulticaster(StripePosition.fresh(FIRST), feeds=("A",))
    remulticaster.start(NOON)
    listed = [
        PublishedTrade(1 + place % 2, "IBM", place * 10**8, place * ONE, NOON + place, place, place % 4)
        for place in range(6)
    ]
    remulticaster.deliver(delivery(1, [*map(encode, listed), encode(UNLISTED)]), NOON)
    remulticaster.on_formation(FormationChange(0, 8, 8, 8, False, b"", NOON + 8))
    remulticaster.deliver(delivery(8, [*map(encode_notice, NOTICES.values()), b"no trade", b"x" * 3_000]), NOON)
    remulticaster.on_formation(FormationChange(0, 9, 13, 13, False, b"", NOON + 13))
    remulticaster.change_plan(plan(2), at_sequence=13, at=NOON + 13)
    remulticaster.deliver(delivery(13, [encode(listed[1])]), NOON)
    remulticaster.on_formation(FormationChange(0, 10, 14, 14, True, b"", NOON + 14))
    remulticaster.deliver(delivery(14, [encode(listed[2])]), NOON)
    remulticaster.wake(NOON + 10**9)
    remulticaster.end(NOON + 30, NOON + 2 * 10**9)
    remulticaster.wake(NOON + 3 * 10**9)
    for place, effect in enumerate(remulticaster.drain()):
        assert isinstance(effect, SendMulticast)
        for number, datagram in enumerate(effect.datagrams):
            yield f"packet {place}.{number} to {effect.to}", datagram
