"""A trader with a real FIX engine at a real gateway: sends orders, cancels some, and records every report."""

import json
import sys
import sysconfig
from pathlib import Path
from threading import Event

import quickfix as fix
import quickfix44 as fix44

from loopback.quickfix_child import SETTINGS, type_of
from loopback.quickfix_child import Trader as Counting

PATIENCE_SECONDS = 180.0
PAUSE_SECONDS = 0.002
CERTAINTY = 20_002
SEQUENCE = 20_001


def field(message: fix.Message, tag: int) -> str:
    return str(message.getField(tag)) if message.isSetField(tag) else ""


class Trader(Counting):
    """Counts reports until every order is done: bought and committed, or cancelled."""

    def __init__(self, orders: int, password: str) -> None:
        super().__init__(orders, password, username="TRADER")
        self.executions: list[tuple[str, str, str, str, str]] = []
        self.done: set[str] = set()

    def fromApp(self, message: fix.Message, session: fix.SessionID) -> None:  # noqa: N802, ARG002 - its name
        if type_of(message) != "8":
            self.rejects.append(message.toString())
            return
        kind, certainty = field(message, 150), field(message, CERTAINTY)
        # A gateway that crashed has lost the ClOrdID of a cancel, and reports it under that of the order.
        name = (field(message, 41) if kind == "4" else "") or field(message, 11)
        self.executions.append((name, kind, certainty, field(message, 17), field(message, SEQUENCE)))
        if kind in ("4", "8") or certainty == "C":
            self.done.add(name)
        if len(self.done) >= self.orders:
            self.complete.set()


def order(number: int) -> fix.Message:
    message = fix44.NewOrderSingle()
    message.setField(fix.ClOrdID(f"T{number:06}"))
    message.setField(fix.Symbol("MSFT"))
    message.setField(fix.Side(fix.Side_BUY))
    message.setField(fix.TransactTime())
    message.setField(fix.OrderQty(1))
    message.setField(fix.OrdType(fix.OrdType_LIMIT))
    message.setField(fix.Price(101.25 if number % 4 else 90))
    return message


def cancel(number: int) -> fix.Message:
    message = fix44.OrderCancelRequest()
    message.setField(fix.OrigClOrdID(f"T{number:06}"))
    message.setField(fix.ClOrdID(f"C{number:06}"))
    message.setField(fix.Symbol("MSFT"))
    message.setField(fix.Side(fix.Side_BUY))
    message.setField(fix.TransactTime())
    return message


def main(port: str, orders: str, folder: str, password: str) -> None:
    """Send everything, wait until everything is done, log out."""
    dictionary = Path(sysconfig.get_path("data")) / "share" / "quickfix" / "FIX44.xml"
    settings_file = Path(folder) / "trader.cfg"
    settings_file.write_text(SETTINGS.format(port=port, folder=folder, dictionary=dictionary, more=""))
    settings = fix.SessionSettings(str(settings_file))
    trader = Trader(int(orders), password)
    initiator = fix.SocketInitiator(trader, fix.FileStoreFactory(settings), settings, fix.FileLogFactory(settings))
    initiator.start()
    trader.begun.wait(PATIENCE_SECONDS)
    pause = Event()
    for number in range(1, trader.orders + 1):
        fix.Session.sendToTarget(order(number), trader.session)
        if number % 4 == 0:
            fix.Session.sendToTarget(cancel(number), trader.session)
        pause.wait(PAUSE_SECONDS)
    trader.complete.wait(PATIENCE_SECONDS)
    initiator.stop()
    results = {
        "reports": trader.executions,
        "logons": trader.logons,
        "resends_asked": trader.resends_asked,
        "rejects": trader.rejects,
        "done": len(trader.done),
    }
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
