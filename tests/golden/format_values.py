"""Fixed messages of the formats that others define: ITCH 5.0, OUCH 4.2, SoupBinTCP and FIX 4.4."""

from collections.abc import Iterator

from fairtape.formats import ouch, soupbintcp
from fairtape.formats.fix import order_messages as fix
from fairtape.formats.fix.admin_messages import LOGON, Logon
from fairtape.formats.fixed_layout import Number
from fairtape.formats.itch import messages as itch
from fairtape.gateway.session.fix_session import compose, header, resent_messages
from golden.market_values import AT

REPORT = fix.ExecutionReport(
    order_id="17", cl_ord_id="order-2", exec_id="8-5", exec_type=fix.ExecType.TRADE, account="ALICE", symbol="IBM",
    ord_status=fix.OrdStatus.PARTIALLY_FILLED, side=fix.FixSide.BUY, order_qty=5 * 10**9, last_qty=10**9,
    last_px=101_250_000_000, leaves_qty=4 * 10**9, cum_qty=10**9, avg_px=101_250_000_000, transact_at=AT, sequence=17,
    certainty=fix.Certainty.TENTATIVE,
)  # fmt: skip


def formats() -> Iterator[tuple[str, bytes | str]]:
    """The n-th field of a message of fixed layout is n, or the letter Q."""
    layouts = {"ITCH": itch.LAYOUTS, "OUCH from a client": ouch.INBOUND, "OUCH to a client": ouch.OUTBOUND}
    for title, messages in layouts.items():
        for letter, layout in messages.items():
            kinds = [field.kind for field in layout.fields]
            values = [place if isinstance(kind, Number) else "Q" for place, kind in enumerate(kinds, 1)]
            yield f"{title} {letter}", layout.encode(layout.message(*values))
    for packet in (
        soupbintcp.LoginRequest("user", "secret", "FT00100001", 17, 5_000),
        soupbintcp.LoginAccepted("FT00100001", 17),
        soupbintcp.LoginRejected("A"),
        soupbintcp.SequencedData(b"message"),
        soupbintcp.UnsequencedData(b"message"),
        soupbintcp.ServerHeartbeat(),
        soupbintcp.EndOfSession(),
    ):
        yield f"SoupBinTCP {packet.LETTER}", soupbintcp.encode(packet)
    logon = compose(LOGON.write(Logon(heart_bt_int=30, username="ALICE")), header("ALICE", "FAIRTAPE", 1, AT))
    report = compose(fix.write(REPORT), header("FAIRTAPE", "ALICE", 3, AT))
    again = resent_messages([(3, report)], 2, 4, ours="FAIRTAPE", theirs="ALICE", now=AT + 10**9)
    for place, message in enumerate((logon, report, *again)):
        yield f"FIX {place}", message.decode()
