"""A reference implementation of the tables that are made of traces: plain loops over the files."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from fairtape.pipeline.schemas import PERCENTILES
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage.trace_files import TRACES, file_ends, trace_files
from pipeline.reference_tables import Row


class ReferenceLinks:
    """All traces of all journals, in memory."""

    def __init__(self, journals: Iterable[Path]) -> None:
        self.records: list[tuple[int, int, int, Trace]] = []  # stripe, site, number, record
        for journal in journals:
            files = trace_files(journal / TRACES)
            for file, end in zip(files, file_ends(files), strict=True):
                for first, records in file.read(last=end is None):
                    for step, record in enumerate(records.tolist()):
                        self.records.append((file.stripe, file.site, first + step, Trace(*record)))

    def of_kind(self, kind: TraceKind) -> list[tuple[int, int, Trace]]:
        return [(stripe, site, trace) for stripe, site, _, trace in self.records if trace.kind == kind]

    def links(self) -> list[Row]:
        found: dict[tuple[int, int, int], list[Trace]] = defaultdict(list)
        for stripe, site, trace in self.of_kind(TraceKind.TOKEN):
            found[stripe, trace.peer, site].append(trace)
        rows = []
        for (stripe, from_site, to_site), traces in found.items():
            unasked = [trace for trace in traces if trace.came_at and not trace.ack_requests]
            lost = sum(is_lost(trace) for trace in traces)
            absent = sum(not trace.came_at for trace in traces)
            rows.append(
                {"stripe": stripe, "from_site": from_site, "to_site": to_site, "tokens": len(traces)}
                | {"unasked": len(unasked), "lost": lost, "late": sum(map(is_late, traces)), "absent": absent}
                | {"loss": (lost + absent) / len(traces)}
                | {"clock_bound_max_ns": max(trace.clock_bound for trace in traces)}
                | distribution([trace.came_at - trace.sent_at for trace in unasked])
            )
        return rows

    def source_links(self) -> list[Row]:
        messages: Counter[tuple[int, int, int]] = Counter()
        missing: Counter[tuple[int, int, int]] = Counter()
        for stripe, site, trace in self.of_kind(TraceKind.SOURCE):
            messages[stripe, trace.peer, site] += trace.messages
            missing[stripe, trace.peer, site] += trace.missing
        return [
            {"stripe": key[0], "source": key[1], "site": key[2], "messages": count, "missing": missing[key]}
            | {"loss": missing[key] / count if count else None}
            for key, count in messages.items()
        ]

    def token_losses(self) -> list[Row]:
        found: dict[tuple[int, int, int, int], list[Trace]] = defaultdict(list)
        for stripe, _, trace in self.of_kind(TraceKind.TOKEN):
            found[stripe, trace.formation, trace.token, trace.peer].append(trace)
        return [
            {"stripe": stripe, "formation": formation, "token": token, "portal": portal, "sites": len(traces)}
            | {"lost": sum(is_lost(trace) or not trace.came_at for trace in traces)}
            | {"late": sum(map(is_late, traces)), "requests": sum(map(requests_of, traces))}
            | {"requests_max": max(map(requests_of, traces)), "messages": max(trace.messages for trace in traces)}
            | {"missing": sum(trace.missing for trace in traces)}
            for (stripe, formation, token, portal), traces in found.items()
        ]

    def retries(self) -> list[Row]:
        counted = Counter((stripe, site, requests_of(trace)) for stripe, site, trace in self.of_kind(TraceKind.TOKEN))
        return [
            {"stripe": stripe, "site": site, "requests": requests, "tokens": tokens}
            for (stripe, site, requests), tokens in counted.items()
        ]

    def requests(self) -> list[Row]:
        found: dict[tuple[int, int, int, str], list[Trace]] = defaultdict(list)
        for stripe, site, trace in self.of_kind(TraceKind.REQUEST):
            found[stripe, site, trace.peer, "acknowledgment" if trace.ack_requests else "messages"].append(trace)
        return [
            {"stripe": stripe, "site": site, "asked": asked, "wanted": wanted, "requests": len(traces)}
            | {"answered": sum(trace.came_at > 0 for trace in traces)}
            | distribution([trace.came_at - trace.sent_at for trace in traces if trace.came_at and is_first(trace)])
            for (stripe, site, asked, wanted), traces in found.items()
        ]


def requests_of(trace: Trace) -> int:
    return trace.ack_requests + trace.message_requests


def is_first(trace: Trace) -> bool:
    return requests_of(trace) == 1


def is_late(trace: Trace) -> bool:
    """It was asked for, and as many copies came as were asked for: one of them had been on its way."""
    return bool(trace.came_at and trace.ack_requests and trace.copies >= trace.ack_requests - trace.premature)


def is_lost(trace: Trace) -> bool:
    return bool(trace.came_at and trace.ack_requests - trace.premature > trace.copies)


def distribution(values: list[int]) -> Row:
    if not values:
        return dict.fromkeys(("count", "least", *PERCENTILES, "most"))
    ordered = sorted(values)
    shares = {name: ordered[math.ceil(len(ordered) * share / 10_000) - 1] for name, share in PERCENTILES.items()}
    return {"count": len(ordered), "least": ordered[0], **shares, "most": ordered[-1]}
