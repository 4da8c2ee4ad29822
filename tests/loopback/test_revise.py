"""`fairtape revise`: a venue cancels and corrects trades and halts, at places in the one order."""

from pathlib import Path

import pytest

from loopback.commands import finish, interrupt, run
from loopback.test_publish_listen import ring

CSV = """time,symbol,price,quantity,venue,trade_id
2024-08-09T00:00:00.100Z,ETH,2680.55,1,XLON,1
2024-08-09T00:00:00.200Z,BTC,61804.7,2,XLON,2
"""


@pytest.mark.alone
def test_a_venue_revises_what_it_published_and_listeners_see_it_in_the_order(tmp_path: Path) -> None:
    folder, trades = tmp_path / "ring", tmp_path / "trades.csv"
    trades.write_text(CSV)
    with ring(folder) as listen:
        assert run("publish", folder, trades)[0] == 0
        assert run("revise", "cancel", folder, 1)[1] == "canceled: number 1, ETH 1 for 2680.55 at XLON\n"
        code, output, _ = run("revise", "correct", folder, 2, "--price", "61804.5")
        assert (code, output) == (0, "corrected: number 2, BTC 2 for 61804.7 at XLON, is now 2 for 61804.5\n")
        assert run("revise", "correct", folder, 4, "--quantity", 3)[0] == 0, "a corrected trade has a number of its own"
        assert run("revise", "halt", folder, "xnys")[0] == 0
        refused = {
            ("cancel", folder, 99): "NUMBER is 99, which the order has not reached; name a trade by its number",
            ("cancel", folder, 3): "NUMBER is 3, which is not a trade; name a trade by its number",
            ("cancel", folder, 1): "NUMBER is 1, a trade that number 3 has canceled; it is void",
            ("cancel", folder, 2): "a trade that number 4 has corrected; it is known by that number now",
            ("correct", folder, 2): "neither --price nor --quantity is given; give the correct value",
            ("correct", folder, 5, "--price", "much"): "--price: 'much' is not a decimal number",
            ("correct", folder, 5, "--quantity", "-1"): "quantity is -1000000000; it must be from",
            ("halt", folder, "nowhere"): "VENUE is 'nowhere'; the ring knows XNYS",
        }
        for arguments, sentence in refused.items():
            code, output, errors = run("revise", *arguments)
            assert (code, output) == (2, "")
            assert sentence in errors
        interrupt(listen)
        _, output, _ = finish(listen)
    revisions = [line.split(maxsplit=3)[3] for line in output.splitlines()[3:]]
    assert revisions == [
        "number 1 is canceled: ETH@XLON",
        "number 2 is corrected: BTC@XLON 2 at 61804.5",
        "number 4 is corrected: BTC@XLON 3 at 61804.5",
        "XNYS is halted",
    ]
    code, _, errors = run("revise", "cancel", folder, 2)
    assert code == 2
    assert "is not running; start it with: fairtape listen" in errors
