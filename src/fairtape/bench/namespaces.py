"""Network namespaces on one bridge that stand for machines, each with an address and a link that can be cut."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

NETWORK: Final = "10.203.77"
_BURST: Final = "256kb"  # of a shaped link: a train of datagrams passes as one packet
_QUEUE: Final = "100ms"


class Refused(Exception):
    """This machine does not allow network namespaces."""


class Machines:
    """Namespaces 1 … n, reachable from one another at NETWORK.1 … NETWORK.n."""

    def __init__(self, count: int) -> None:
        self._name = f"ft{os.getpid() % 100_000}"
        self.hosts = tuple(f"{NETWORK}.{number}" for number in range(1, count + 1))

    def enter(self, host: str) -> tuple[str, ...]:
        """The command prefix to run a command on the machine with this address."""
        return "ip", "netns", "exec", self._space(host)

    def cable(self, host: str, *, plugged: bool) -> None:
        """Disconnect a machine from the network, or connect it again."""
        _ip("link", "set", self._cable(host), "up" if plugged else "down")

    def shape(self, host: str, megabits: int) -> None:
        """Limit the rate of the link of a machine, in both directions."""
        shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", _BURST, "latency", _QUEUE)
        _run("tc", "qdisc", "replace", "dev", self._cable(host), *shape)
        _run("tc", "-n", self._space(host), "qdisc", "replace", "dev", "eth0", *shape)

    def build(self) -> None:
        _ip("link", "add", self._name, "type", "bridge", "mcast_snooping", "0")
        _ip("link", "set", self._name, "up")
        for host in self.hosts:
            space, cable = self._space(host), self._cable(host)
            _ip("netns", "add", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._name)
            _ip("link", "set", cable, "up")
            for command in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"{host}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("route", "add", "239.0.0.0/8", "dev", "eth0"),
            ):
                _ip("-n", space, *command)

    def clear(self) -> None:
        for host in self.hosts:
            with suppress(Refused):
                _ip("netns", "delete", self._space(host))
        with suppress(Refused):
            _ip("link", "delete", self._name)

    def _space(self, host: str) -> str:
        return f"{self._name}-{host.rpartition('.')[2]}"

    def _cable(self, host: str) -> str:
        return f"{self._name}v{host.rpartition('.')[2]}"


@contextmanager
def machines(count: int) -> Iterator[Machines]:
    """This many machines within the context. Raises `Refused` where they cannot be made."""
    if os.geteuid() != 0 or not any(Path(folder, "ip").exists() for folder in ("/sbin", "/usr/sbin", "/bin")):
        raise Refused("network namespaces need root and the command ip")
    made = Machines(count)
    try:
        made.build()
        yield made
    finally:
        made.clear()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(  # noqa: S603 - built here
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip()}")
