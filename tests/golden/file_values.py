"""Files that are written from fixed values: a journal, the order log of a gateway, traces, deployment folders."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

from fairtape.core.effects import Ordered, Release
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.gateway.storage.order_log import OrderLog
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.journal import format as records
from fairtape.journal.notifications import Level, Notification, encode_notification, encode_registration
from fairtape.journal.segment_list import LIST_HEADER_SIZE, LIST_NAME
from fairtape.journal.truncation import plan_truncation, truncate
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage.trace_files import TraceWriter
from golden.ring_values import AT, STRIPE, formation_change, ordered

TOKENS = range(40, 60)
VARYING = {
    "lock": "the number of the writing process",
    "identity": "eight hexadecimal digits and a line feed",
}


def files_in(folder: Path, title: str) -> Iterator[tuple[str, bytes | str]]:
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = f"{title} {path.relative_to(folder).as_posix()}"
        yield name, VARYING.get(path.name) or _content(path)


def _content(path: Path) -> bytes:
    """The content of a file; of a list of segments without the boot and the inode in its header."""
    content = path.read_bytes()
    return content[:8] + content[LIST_HEADER_SIZE:] if path.name == LIST_NAME else content


def released(entry: Ordered) -> Release:
    late = entry.token % 5 == 0
    due_at = entry.acknowledged_at + 1_700_000
    return Release(entry.token, entry.sequence, entry.count, due_at, due_at + 7, late, 1_500)


def journal(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """The policy `token` waits for the disk, so the places of the checkpoints do not depend on its speed."""
    change = formation_change(7, 40, 100)
    tip = records.Tip(7, 44, 135, AT, bytes(range(32)), 128, 43, records.first_mark(6))
    yield "record header", records.encode_header(records.SegmentHeader(STRIPE, 6, 2, tip))
    yield "record release", records.encode_release(released(ordered(7, 40, 100)))
    yield (
        "record checkpoint",
        records.encode_checkpoint(records.SegmentCheckpoint({102: (1, 44), 101: (5, 135)}, change)),
    )
    yield "record checkpoint without a formation", records.encode_checkpoint(records.SegmentCheckpoint({}, None))
    directory = folder / "journal"
    with JournalWriter.open(
        directory, stripe=STRIPE, site=6, sync=SyncPolicy.TOKEN, segment_size_max=4 << 10
    ) as writer:
        unreleased: list[Ordered] = []
        for place, token in enumerate(TOKENS):
            if place % 8 == 0:
                writer.append_formation(formation_change(7 + place, token, 100 + 7 * place, broken=place == 16), AT)
            unreleased.append(ordered(7 + place // 8 * 8, token, 100 + 7 * place))
            writer.append(unreleased[-1], AT)
            if place >= 2:
                writer.release(released(unreleased.pop(0)), AT)
    yield from files_in(directory, "written")
    steps = truncate(directory, plan_truncation(directory, 50))
    next(steps)
    next(steps)
    yield from files_in(directory, "while it is cut")
    with JournalWriter.open(
        directory, stripe=STRIPE, site=6, sync=SyncPolicy.TOKEN, segment_size_max=4 << 10
    ) as writer:
        writer.truncate_after(50)
        writer.append_formation(formation_change(24, 51, 177, broken=True), AT)
        writer.append(ordered(24, 51, 177), AT)
    yield from files_in(directory, "cut and continued")


def notifications() -> Iterator[tuple[str, bytes | str]]:
    """What a site and the readers of its journal send each other."""
    for level in Level:
        yield f"registration {level.name.lower()}", encode_registration(level)
    yield "notification", encode_notification(Notification(300, 200, 100))


def order_log(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    path = folder / "orders"
    log = OrderLog(path, file_max=200)
    for number in (3, 1, 2):
        log.append(number, b"request %d" % number)
    log.mark_placed([2])
    log.close()
    yield "three requests, one of them placed", path.read_bytes()
    log = OrderLog(path, file_max=200)
    log.append(4, bytes(100))
    log.close()
    yield "written anew without what is placed", path.read_bytes()


def traces(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """Two runs of one site; the second begins at the next multiple of the numbers of a run."""
    for run in (1, 2):
        writer = TraceWriter(folder, stripe=STRIPE, site=6)
        writer.append(
            [Trace(kind, 1, 2, 3, 4, 5, 7, 40, AT, AT + 1, AT + 2, AT + 3, 900, 16, run) for kind in TraceKind]
        )
        writer.append([Trace(1, 300, 70_000, 70_000, 70_000, *[1 << 70] * 10)])
        writer.close()
    yield from files_in(folder, "traces")


def deployment(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """Keys are drawn at random where a deployment is made: only their names and sizes are fixed."""
    hosts = ("192.0.2.1", "192.0.2.2")
    draft = Draft(loops=(3, 2), profile="wan", hosts=hosts, mesh=True, store="etcd:http://192.0.2.9:2379/fairtape")
    create_deployment(folder / "made", draft)
    settings = tomllib.loads((folder / "made" / "deployment.toml").read_text())
    yield "deployment.toml without comments", json.dumps(settings)
    for path in sorted((folder / "made" / "keys").iterdir()):
        content = json.loads(path.read_text())
        sizes = {kind: {node: len(key) for node, key in content[kind].items()} for kind in ("sites", "sources")}
        yield f"keys/{path.name} with sizes in the place of keys", json.dumps(content | sizes)
