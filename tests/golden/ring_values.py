"""Fixed values of the ring: datagrams with their seals and authenticators, entries of the order, formation layouts."""

from collections.abc import Iterator
from dataclasses import replace

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.entries import encode_entry
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.wire import frames as wire
from fairtape.wire import membership as servers
from fairtape.wire.blocks import pack_messages, pack_records, split_message
from fairtape.wire.seals import Authenticator, Keys, Marker, Seal

AT = 1_750_000_000_123_456_789  # nanoseconds since 1970
STRIPE = 3
KEYS = Keys.from_secret(bytes(range(32)), sites=(1, 2, 3, 901, 999), sources=(101, 102))
MESSAGES = (b"first", b"", b"a longer message")
LONG_MESSAGE = bytes(range(256)) * 2
FORMATION = Formation(
    number=7, members=(1, 2, 3), timing=PROFILES["lan"], starts_at=AT, first_token=40, first_sequence=100, resilience=1
)


def frames() -> Iterator[tuple[str, bytes]]:
    """Names in capitals are whole datagrams."""
    yield "key of site 1", KEYS.sites[1]
    yield "key of source 101", KEYS.sources[101]
    yield "body of messages", pack_messages(MESSAGES)
    yield "body of messages of one size", pack_messages([b"abc", b"def"])
    yield "body of records", pack_records(bytes(range(12)), 4)
    fragments = list(split_message(LONG_MESSAGE, 200))
    yield from ((f"body of fragment {place}", body) for place, body in enumerate(fragments))
    seal = Seal(KEYS.sources[101], stripe=STRIPE, source=101, incarnation=5)
    block, fragment = (0, STRIPE, 101, 5, 11, 3), (wire.Flag.FRAGMENT, STRIPE, 101, 5, 14, 1)
    yield "BLOCK", seal.close(wire.encode_block_header(*block), 11, pack_messages(MESSAGES))
    yield "BLOCK OF A FRAGMENT", seal.close(wire.encode_block_header(*fragment), 14, fragments[0])
    named = (wire.Range(101, 5, 11, 3), wire.Range(102, 1, 1, 70_000))
    markers = [Marker(KEYS.sources[each.source], stripe=STRIPE) for each in named]
    marks = tuple(
        each.mark(7, 40, 100, one, release_lag_us=1_700, backlog_us=250)
        for each, one in zip(markers, named, strict=True)
    )
    controls: dict[str, tuple[wire.Control, bytes]] = {
        "ACK": (
            wire.Ack(STRIPE, 7, 1, 40, 100, AT, 1_500, 0, 1, named, marks, 1_700, 250, relayed=True),
            KEYS.sites[1],
        ),
        "ACK WITHOUT RANGES": (wire.Ack(STRIPE, 7, 2, 41, 70_103, AT, 1_500, 1, 2, ()), KEYS.sites[2]),
        "REQUEST": (wire.Request(STRIPE, 7, 3, (40, 41), named, AT, 1_500), KEYS.sites[3]),
        "HOLE": (wire.Hole(STRIPE, 7, 1, named[0]), KEYS.sources[101]),
        "PROGRESS": (wire.Progress(STRIPE, 7, 1, 5, 14, 40, 11), KEYS.sources[101]),
        "TOKEN ACK": (wire.TokenAck(STRIPE, 7, 2, 41), KEYS.sites[2]),
    }
    for serial, (name, (message, key)) in enumerate(controls.items(), 1_000):
        yield name, Authenticator(key).prove(wire.encode_control(message, serial))


def membership() -> Iterator[tuple[str, bytes]]:
    """Names in capitals are whole datagrams."""
    layout = encode_formation(FORMATION)
    state, request = servers.MembershipState.MEMBER, servers.MembershipRequest.NOTHING
    numbers = (8, 6, AT, 1_500, 44, 321, 43, 12, 3, 45, 1, 0xD1_6E57, 0x10AD, 0xDE_910F)
    report = servers.SiteReport(STRIPE, 7, 2, 0, state, request, *numbers, term=4, store=0x5708E)
    messages: dict[str, servers.MembershipMessage] = {
        "GRANT": servers.Grant(STRIPE, 7, 901, 0, 4, AT, AT + 5, 900, 150_000_000, 0x5708E),
        "FENCE": servers.Fence(STRIPE, 7, 901, 0, 4, 0x5708E),
        "INSTALL": servers.Install(STRIPE, 7, 901, 4, True, layout, 0x5708E),
        "INSTALL PROPOSAL": servers.Install(STRIPE, 7, 901, 4, False, layout, 0x5708E),
        "CATCH UP": servers.CatchUp(STRIPE, 7, 3, 44, 2, 16),
        "HISTORY": servers.HistoryChunk(STRIPE, 7, 1, 44, 60, 58, 7, 1, 3, b"chunk", 0xCAFE),
        "HISTORY WITHOUT AN ENTRY": servers.HistoryChunk(
            STRIPE, 7, 1, 44, 60, 58, 7, 0, 0, servers.POSITION.pack(7, 44)
        ),
        "LOOP TOKEN": servers.LoopToken(STRIPE, 7, 3, 2, 44),
    }
    messages |= {
        f"REPORT IN STATE {each:d}": replace(report, membership_state=each) for each in servers.MembershipState
    }
    messages |= {f"REPORT WITH REQUEST {each:d}": replace(report, request=each) for each in servers.MembershipRequest}
    messages |= {
        f"COMMAND WITH VERB {each:d}": servers.OperatorCommand(STRIPE, 7, 999, each, 3) for each in servers.OperatorVerb
    }
    for serial, (name, message) in enumerate(messages.items(), 2_000):
        yield name, Authenticator(KEYS.sites[message.sender]).prove(servers.encode_membership(message, serial))


def formation_change(formation: int, token: int, sequence: int, *, broken: bool = False) -> FormationChange:
    value = replace(FORMATION, number=formation, first_token=token, first_sequence=sequence, broken=broken)
    return FormationChange(STRIPE, formation, token, sequence, broken, encode_formation(value), AT + token)


def ordered(formation: int, token: int, sequence: int) -> Ordered:
    """Three messages of source 101, and four of source 102: fragments in every other token."""
    fragments = tuple(split_message(LONG_MESSAGE, 136)) if token % 2 else ()
    bodies = fragments or (pack_messages([b"%d" % token] * 4),)
    spans = (
        Span(101, 5, sequence, 3, sequence, (pack_messages(MESSAGES),), (3,)),
        Span(102, 1, token, 4, sequence + 3, bodies, (1,) * 4 if fragments else (4,), (True,) * len(fragments)),
    )
    return Ordered(STRIPE, formation, token, sequence, 7, AT + token, spans)


def entries() -> Iterator[tuple[str, bytes]]:
    yield "ordered", encode_entry(ordered(7, 40, 100))
    yield "ordered with fragments", encode_entry(ordered(7, 41, 107))
    yield "change of formation", encode_entry(formation_change(8, 42, 114))
    yield "change of formation with a break", encode_entry(formation_change(9, 43, 114, broken=True))


def formations() -> Iterator[tuple[str, bytes]]:
    for name, formation in {
        "smallest": Formation(number=0, members=(1,), timing=PROFILES["metro"], starts_at=0),
        "usual": FORMATION,
        "continued": replace(FORMATION, first_sequence=0, resilience_before=2, leaving=(4, 5), keeper=2),
        "with incarnations": replace(FORMATION, roll=(6, 7, 8)),
        "with a plan": replace(FORMATION, plan=0x0001_BEEF),
        "with journals": replace(FORMATION, roll=(6, 7, 8), journals=(0xA1, 0xA2, 0xA3)),
        "with stores": replace(FORMATION, stores=(0x5708E, 0x5708D)),
        "of version 1": replace(FORMATION, layout_version=1),
        "of version 2 with a plan": replace(FORMATION, layout_version=2, plan=0x0001_BEEF),
        "with a break": replace(FORMATION, broken=True),
        "of a secondary loop": replace(FORMATION, loop=2, stride=3, request_sets=2),
        "without timing": replace(FORMATION, timed=False),
        "with two retry counts": replace(FORMATION, timing=replace(PROFILES["wan"], merged=False)),
    }.items():
        yield f"formation {name}", encode_formation(formation)
