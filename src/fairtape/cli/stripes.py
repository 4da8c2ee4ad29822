"""`fairtape plan stripes`: which symbols customers hear together, from the trades of a file."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
import numpy as np

from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.edge.protocol.pacing import OVERHEAD
from fairtape.formats.itch.ticker import MPID_MAX
from fairtape.market.stripe_files import to_toml
from fairtape.market.stripe_planning import BASE, Load, Planned, plan_by_rate
from fairtape.market.stripes import BITS_PER_S_MAX, DAY, STRIPES_MAX, VERSION_MAX, BadPlan, Endpoint
from fairtape.storage.trade_files import read_trades

CAP: Final = 20_000_000  # bits/s
HEADROOM: Final = 4.0  # what a busy moment brings, over the mean
TRADE_BITS: Final = 8 * (OVERHEAD + 20 + 2 + 44)  # of a trade that is alone in its datagram


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--stripes", default=8, show_default=True, help="Edge stripes for trades.")
@click.option("--cap", default=CAP, show_default=True, help="Bits per second of one stripe, at most.")
@click.option("--headroom", default=HEADROOM, show_default=True, help="How much busier a busy moment is than the mean.")
@click.option("--feeds", default="A,B", show_default=True, help="The regions' feeds.")
@click.option("--base", default=str(BASE), show_default=True, help="The first multicast address, and the port of all.")
@click.option("--version", default=1, show_default=True, help="Of the plan: above that of the one in force.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan here.  [default: only the loads]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def stripes(
    *,
    file: Path,
    stripes: int,
    cap: int,
    headroom: float,
    feeds: str,
    base: str,
    version: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Spread symbols over stripes, by their rates.

    FILE is CSV or Parquet, as for `fairtape publish`. The busiest symbol goes first, each to the stripe with the least
    load. A stripe whose load is above its cap is marked. Symbols that are not in the file find their place by rule.
    """
    check_within("--stripes", stripes, 1, STRIPES_MAX - 1)
    check_within("--cap", cap, 1, BITS_PER_S_MAX)
    check_within("--headroom", headroom, 0.01, 1e6)
    check_within("--version", version, 1, VERSION_MAX)
    rates, venues = _rates(file, headroom)
    try:
        planned = plan_by_rate(
            rates,
            stripes,
            cap,
            version=version,
            midnight_at=time.time_ns() // DAY * DAY,
            feeds=feeds.split(","),
            venues=venues,
            base=Endpoint.parse(base, "--base"),
        )
    except BadPlan as bad:
        raise UserError(str(bad)) from None
    if out is not None:
        _write(out, planned)
    click.echo(_loads_as_json(planned.loads) if as_json else "\n".join(_table(planned.loads)))


def _rates(file: Path, headroom: float) -> tuple[dict[str, int], list[str]]:
    """Bits/s of each symbol, and the venues that a directory can name."""
    counts: Counter[bytes] = Counter()
    venues: set[bytes] = set()
    first_at, last_at = 1 << 62, 0
    for trades in read_trades(file):
        names, seen = np.unique(trades["symbol"], return_counts=True)
        counts.update(dict(zip(names.tolist(), seen.tolist(), strict=True)))
        venues |= set(np.unique(trades["venue"]).tolist())
        first_at, last_at = min(first_at, int(trades["traded_at"].min())), max(last_at, int(trades["traded_at"].max()))
    lasted = max(last_at - first_at, SECOND) / SECOND
    rates = {name.decode(): round(count * TRADE_BITS * headroom / lasted) for name, count in counts.items()}
    return rates, sorted(name.decode() for name in venues if 0 < len(name) <= MPID_MAX)


def _write(path: Path, planned: Planned) -> None:
    try:
        path.write_text(to_toml(planned.plan), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out is {str(path)!r}, which cannot be written ({error.strerror}); name another") from None


def _table(loads: Sequence[Load]) -> list[str]:
    lines = ["stripe  symbols       bits/s          cap   load"]
    for load in loads:
        mark = "  above its cap" if load.over else ""
        lines.append(
            f"{load.stripe:>6}  {load.symbols:>7,}  {load.bits_per_s:>11,}  {load.bits_per_s_max:>11,}"
            f"  {load.share:>5.0%}{mark}"
        )
    return lines


def _loads_as_json(loads: Sequence[Load]) -> str:
    return json.dumps({"stripes": [asdict(load) | {"share": load.share, "over": load.over} for load in loads]})
