"""`connect`: makes a tape from the target and the options that a user names."""

from collections.abc import Iterable
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fairtape.client.backlog import Backlog, Policy
from fairtape.client.errors import ClientError, as_client_error
from fairtape.client.file_feed import SUFFIXES, FileFeed
from fairtape.client.journal_feed import JournalFeed
from fairtape.client.selection import Selection
from fairtape.client.tape import Tape
from fairtape.core.instants import SECOND, Instant
from fairtape.deployment.config.description import FILE, read_deployment
from fairtape.market.symbols import BadName, checked_venue
from fairtape.tape.feed import AtInstant, AtNumber, AtSnapshot, Beginning, Feed, Live, Start
from fairtape.wire.frames import NUMBER_MAX

MOLD: Final = "mold://"
SCHEMES: Final = ("ws", "wss")
SERVERS_MAX: Final = 32
QUEUE_MAX: Final = 1 << 18  # records: some 40 MB of trades
QUEUE_LIMIT: Final = 1 << 26
GRADES: Final = ("guaranteed", "best effort")
INSTANT_MIN: Final = 10**17
"""A whole number from here on is an instant in nanoseconds, below it a sequence number.

As an instant this is March 1973; as a number, a million messages a second reach it after three thousand years.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def connect(
    target: str | PathLike[str],
    symbols: Iterable[str] | str | None = None,
    stripes: Iterable[int] | int | None = None,
    start: str | int | datetime | None = None,
    *,
    policy: str = "block",
    queue_max: int = QUEUE_MAX,
    grade: str = "guaranteed",
    follow: bool | None = None,
    midnight: datetime | int | None = None,
    venue: str = "",
) -> Tape:
    """Read the order: live, or from a position in the past on.

    `target` is the journal of a site, the folder of a deployment that runs on this machine, a file of trades (CSV,
    Parquet, DBN, ITCH 5.0), or the address of a server (`fairtape web`) such as "ws://10.0.0.7:8765"; with
    several addresses, separated by commas, the next one is used when one fails. Edge stripes are received as
    "mold://TAG@/path/of/plan.toml?servers=HOST:PORT", each in its own order.

    `start` says where to begin: None with what comes next (a file: with its first trade), "beginning" with the first
    record there is, "snapshot" with the last trade of each symbol and then with what comes next. A whole number below
    10**17 is a sequence number; one from there on, or a datetime with a time zone, is an instant.

    `policy` and `queue_max` are for a reader that is slower than the feed: at most `queue_max` records wait. Then
    "block" pauses the feed, "skip" drops the oldest records, "conflate" keeps the latest of each symbol; both report
    what is missing. `grade` matters on a network: with "guaranteed", what was lost there, or came while the reader was
    too slow for its server, is read from a site's journal; with "best effort" it is reported as missing.

    `follow` says whether to wait for more at the end of a journal; by default only where reading begins at the end.
    `midnight` (an instant) and `venue` are what a file of ITCH does not contain.
    """
    with as_client_error():
        selection = Selection.of(symbols, stripes)
        begin = _start(start)
        chosen, size_max = _policy(policy), _queue_max(queue_max)
        if grade not in GRADES:
            raise ClientError(f"grade is {grade!r}; give {' or '.join(map(repr, GRADES))}")
        if isinstance(target, str) and "://" in target:
            feed = _network_feed(target, selection, guaranteed=grade == GRADES[0])
        else:
            midnight_at = None if midnight is None else _instant("midnight", midnight)
            feed = _feed(_path(target), begin, follow, midnight_at, venue)
        feed.open(begin)
    return Tape(feed, Backlog(policy=chosen, size_max=size_max), selection)


def _network_feed(target: str, selection: Selection, *, guaranteed: bool) -> Feed:
    # Imported here, so that readers of journals and files do not load the network modules.
    if target.startswith(MOLD):
        from fairtape.client.stripe_feed import StripeFeed, StripeTarget

        return StripeFeed(StripeTarget.of(target), selection, guaranteed=guaranteed)
    from fairtape.client.remote_feed import RemoteFeed

    return RemoteFeed(_addresses(target), selection, guaranteed=guaranteed)


def _addresses(target: str) -> list[str]:
    addresses = [address.strip() for address in target.split(",")]
    for address in addresses:
        if address.partition("://")[0] not in SCHEMES:
            raise ClientError(f"target is {address!r}; an address is such as 'ws://127.0.0.1:8765'")
        try:
            urlsplit(address).port  # noqa: B018 - asking for it is what checks it
        except ValueError as error:
            raise ClientError(f"target is {address!r}: {error}; an address is such as 'ws://127.0.0.1:8765'") from None
    if len(addresses) > SERVERS_MAX:
        raise ClientError(f"target names {len(addresses)} addresses; give at most {SERVERS_MAX}")
    return addresses


def _path(target: object) -> Path:
    if not isinstance(target, str | PathLike):
        raise ClientError(
            f"target is {target!r}; name a journal, the folder of a deployment, a file of trades or an address"
        )
    path = Path(fspath(target))
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise ClientError(f"target is no path ({error}); name a journal, a deployment's folder or a file") from None
    if not exists:
        raise ClientError(f"target {str(path)!r} does not exist; name a journal, a deployment's folder or a trade file")
    return path


def _feed(path: Path, start: Start, follow: bool | None, midnight_at: Instant | None, venue: str) -> Feed:
    if path.is_dir():
        if (path / FILE).exists():
            return _deployment_feed(path)
        return JournalFeed(path, endless=isinstance(start, Live | AtSnapshot) if follow is None else follow)
    if not path.name.lower().endswith(SUFFIXES):
        raise ClientError(f"target {str(path)!r} is not named like a trade file; it must end in {', '.join(SUFFIXES)}")
    try:
        return FileFeed(path, midnight_at=midnight_at, venue=checked_venue(venue) if venue else "")
    except BadName as error:
        raise ClientError(str(error)) from None


def _deployment_feed(path: Path) -> Feed:
    # Imported here: it loads all modules of a site, which readers of journals and files do not need.
    from fairtape.client.journal_feed import DeploymentFeed
    from fairtape.deployment.follow.site_failover import SiteFailover

    return DeploymentFeed(SiteFailover(read_deployment(path)), f"deployment {path}")


def _start(start: object) -> Start:
    match start:
        case None:
            return Live()
        case "beginning":
            return Beginning()
        case "snapshot":
            return AtSnapshot()
        case bool() | str():
            pass
        case int() if 1 <= start < INSTANT_MIN:
            return AtNumber(start)
        case int() | datetime():
            return AtInstant(_instant("start", start))
    raise ClientError(
        f"start is {start!r}; give None, 'beginning', 'snapshot', a sequence number, or a datetime with a time zone"
    )


def _instant(field: str, moment: object) -> Instant:
    """Nanoseconds since 1970 UTC."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ClientError(f"{field} is {moment}, which names no time zone; give one, such as tzinfo=UTC")
        elapsed = moment - _EPOCH
        moment = (elapsed.days * 86_400 + elapsed.seconds) * SECOND + elapsed.microseconds * 1_000
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 < moment <= NUMBER_MAX:
        raise ClientError(f"{field} is {moment!r}; give an instant after 1970, a datetime or nanoseconds")
    return moment


def _policy(policy: object) -> Policy:
    try:
        return Policy(policy)
    except ValueError:
        known = ", ".join(repr(each.value) for each in Policy)
        raise ClientError(f"policy is {policy!r}; give one of {known}") from None


def _queue_max(queue_max: object) -> int:
    if isinstance(queue_max, bool) or not isinstance(queue_max, int) or not 1 <= queue_max <= QUEUE_LIMIT:
        raise ClientError(f"queue_max is {queue_max!r}; give a number of records from 1 to {QUEUE_LIMIT:,}")
    return queue_max
