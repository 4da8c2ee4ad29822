"""The trade that a cancel or a correction refers to.

A trade is named by its sequence number. Its venue, its symbol and the source that published it are read from a journal
of this machine: only that source may revise it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import JOURNALS
from fairtape.journal.reader import JournalReader
from fairtape.journal.segment_list import journals_below
from fairtape.market.notices import CancelNotice, CorrectionNotice, notice_in
from fairtape.market.trades import BadTrade, PublishedTrade, decode
from fairtape.wire.frames import NodeId

_REMEDY: Final = "name a trade by its number, as `fairtape listen` prints it"


def trade_in(directory: Path, number: int) -> tuple[PublishedTrade, NodeId]:
    """The trade with this sequence number, and the source that published it. Raises `UserError`."""
    journals = list(_journals(directory))
    if not journals:
        raise UserError(f"there is no journal below {str(directory)!r}; run this where a site of the ring runs")
    for journal in journals:
        for message in journal.messages(from_sequence=number, to_sequence=number, ordered=True):
            trade = _trade(message.payload, number)
            _refuse_revised(journal, number, message.source)
            return trade, message.source
    raise UserError(f"NUMBER is {number}, which the order has not reached; {_REMEDY}")


def _trade(payload: bytes, number: int) -> PublishedTrade:
    """The trade in a message. A correction also is a trade, under its own number."""
    if isinstance(notice := notice_in(payload), CorrectionNotice):
        return notice.trade
    try:
        return decode(payload)
    except BadTrade:
        raise UserError(f"NUMBER is {number}, which is not a trade; {_REMEDY}") from None


def _refuse_revised(journal: JournalReader, number: int, source: NodeId) -> None:
    """Refuse a trade that was canceled, or corrected under another number."""
    for later in journal.messages(from_sequence=number + 1, ordered=True):
        notice = notice_in(later.payload) if later.source == source else None
        if not isinstance(notice, CancelNotice | CorrectionNotice) or notice.number != number:
            continue
        if isinstance(notice, CancelNotice):
            raise UserError(f"NUMBER is {number}, a trade that number {later.sequence} has canceled; it is void")
        raise UserError(
            f"NUMBER is {number}, a trade that number {later.sequence} has corrected; it is known by that number now"
        )


def _journals(directory: Path) -> Iterator[JournalReader]:
    """The journals of a deployment on this machine, the one written last first."""
    lasts = [JournalReader(each).last_path() for each in journals_below(directory / JOURNALS)]
    written = sorted((last for last in lasts if last is not None), key=lambda last: last.stat().st_mtime, reverse=True)
    return (JournalReader.open(last.parent) for last in written)
