"""A trader with a real FIX engine: sends orders without waiting, and reports at the end what it received.

Run as a process of its own: port, number of orders, folder, password, more settings. It starts with the first logon;
from then on the engine reconnects by itself, and its own store holds what it sent without a connection. The last line
on stdout is JSON.
"""

import json
import sys
import sysconfig
from pathlib import Path
from threading import Event

import quickfix as fix
import quickfix44 as fix44

PATIENCE_SECONDS = 90.0
REFUSALS_MAX = 3  # refused logons before it gives up
PAUSE_SECONDS = 0.003  # between two orders, so that connections end among them
SETTINGS = """[DEFAULT]
ConnectionType=initiator
StartTime=00:00:00
EndTime=00:00:00
HeartBtInt=5
ReconnectInterval=0
UseDataDictionary=Y
ValidateUserDefinedFields=N
DataDictionary={dictionary}
FileStorePath={folder}/store
FileLogPath={folder}/log
[SESSION]
BeginString=FIX.4.4
SenderCompID=TRADER
TargetCompID=FAIRTAPE
SocketConnectHost=127.0.0.1
SocketConnectPort={port}
{more}
"""


class Trader(fix.Application):  # type: ignore[misc]  # the engine has no types
    """Counts what it receives."""

    def __init__(self, orders: int, password: str, username: str = "trader") -> None:
        super().__init__()
        self.orders = orders
        self.password = password
        self.username = username
        self.session: fix.SessionID | None = None
        self.reports: list[str] = []
        self.logons = 0
        self.resends_asked = 0
        self.rejects: list[str] = []
        self.refusals: list[str] = []
        self.begun = Event()
        self.complete = Event()

    def onCreate(self, session: fix.SessionID) -> None:  # noqa: N802 - its name
        self.session = session

    def onLogon(self, session: fix.SessionID) -> None:  # noqa: N802, ARG002 - its name
        self.logons += 1
        self.begun.set()

    def onLogout(self, session: fix.SessionID) -> None:  # noqa: N802 - its name
        pass

    def toAdmin(self, message: fix.Message, session: fix.SessionID) -> None:  # noqa: N802, ARG002 - its name
        kind = type_of(message)
        if kind == "A":
            message.setField(fix.StringField(553, self.username))
            message.setField(fix.StringField(554, self.password))
        self.resends_asked += kind == "2"
        if kind == "3":
            self.rejects.append(message.toString())

    def fromAdmin(self, message: fix.Message, session: fix.SessionID) -> None:  # noqa: N802, ARG002 - its name
        kind = type_of(message)
        if kind == "3":
            self.rejects.append(message.toString())
        if kind == "5" and not self.logons:
            text = fix.Text()
            message.getField(text)
            self.refusals.append(text.getValue())
            if len(self.refusals) >= REFUSALS_MAX:
                self.begun.set()
                self.complete.set()

    def toApp(self, message: fix.Message, session: fix.SessionID) -> None:  # noqa: N802 - its name
        pass

    def fromApp(self, message: fix.Message, session: fix.SessionID) -> None:  # noqa: N802, ARG002 - its name
        name = fix.ClOrdID()
        message.getField(name)
        self.reports.append(name.getValue())
        if len(self.reports) >= self.orders:
            self.complete.set()


def type_of(message: fix.Message) -> str:
    kind = fix.MsgType()
    message.getHeader().getField(kind)
    return str(kind.getValue())


def order(number: int) -> fix.Message:
    message = fix44.NewOrderSingle()
    message.setField(fix.ClOrdID(f"T{number:06}"))
    message.setField(fix.Symbol("MSFT"))
    message.setField(fix.Side(fix.Side_BUY if number % 2 else fix.Side_SELL))
    message.setField(fix.TransactTime())
    message.setField(fix.OrderQty(100))
    message.setField(fix.OrdType(fix.OrdType_LIMIT))
    message.setField(fix.Price(101.25))
    message.setField(fix.Text("a=b"))
    return message


def main(port: str, orders: str, folder: str, password: str, more: str) -> None:
    """Send everything, wait for all answers, log out."""
    dictionary = Path(sysconfig.get_path("data")) / "share" / "quickfix" / "FIX44.xml"
    settings_file = Path(folder) / "trader.cfg"
    settings_file.write_text(SETTINGS.format(port=port, folder=folder, dictionary=dictionary, more=more))
    settings = fix.SessionSettings(str(settings_file))
    trader = Trader(int(orders), password)
    initiator = fix.SocketInitiator(trader, fix.FileStoreFactory(settings), settings, fix.FileLogFactory(settings))
    initiator.start()
    trader.begun.wait(PATIENCE_SECONDS)
    pause = Event()
    for number in range(1, trader.orders + 1):
        fix.Session.sendToTarget(order(number), trader.session)
        pause.wait(PAUSE_SECONDS)
    trader.complete.wait(PATIENCE_SECONDS)
    initiator.stop()
    results = {
        "reports": trader.reports,
        "logons": trader.logons,
        "resends_asked": trader.resends_asked,
        "rejects": trader.rejects,
        "refusals": trader.refusals,
    }
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
