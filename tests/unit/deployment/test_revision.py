"""The trade that a cancel or a correction refers to, in the journals of a deployment."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.publish.revision import trade_in
from unit.journal import journal_values as values
from unit.journal.listings import listings
from unit.tape import tape_values


def test_a_trade_is_found_in_the_journals_of_a_deployment_without_a_listing_of_them(tmp_path: Path) -> None:
    order = tape_values.order(60)
    for site in ("s1", "s2"):
        values.write(tmp_path / "journals" / site, order, segment_size_max=1 << 10)
    journal = tmp_path / "journals" / "s2"
    assert len(values.segments(journal)) > 5
    with listings(journal) as found:
        trade, _ = trade_in(tmp_path, 31)
        assert trade == tape_values.trade(31)
    assert found == []


def test_without_a_journal_there_is_no_trade(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no journal below"):
        trade_in(tmp_path, 1)
