"""Checks of a machine: what a site needs, and what this deployment needs.

Each check tries the feature itself where it can, takes a bounded time, and returns a `Finding` also where the feature
is absent. *Bad* means that a site cannot run here; a *note* costs speed, accuracy or an optional feature.
"""

import errno
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.formation_log import STORE_CALLS_PER_LEASE
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import cores_here, sites_max
from fairtape.deployment.config.description import FILE, Deployment
from fairtape.deployment.process.resources import open_formation_store
from fairtape.net.clock import kernel_bound
from fairtape.net.driver import may_run_in_real_time
from fairtape.net.loopback import PORTS, free_ports
from fairtape.net.transports import LOOPBACK, multicast_works
from fairtape.net.udp import BUFFER_SIZE, UdpSocket, bind
from fairtape.nodes.coordinator.leadership import LEASE_MAX
from fairtape.storage.formation_stores import FormationStore, measure_writes

GROUP: Final = "239.195.0.1"  # any group: its route is looked up and nothing is sent
PORTS_WANTED: Final = 256
FILES_WANTED: Final = 1_024
CORES_WANTED: Final = 2
CLOCK_BOUND_WANTED: Final = 1 * MILLISECOND
FREE_MIN: Final = 1 << 30
FREE_WANTED: Final = 10 << 30
SYNCS: Final = 16
SYNC_WANTED: Final = 20 * MILLISECOND
SYNCS_PERIOD_MAX: Final = 2 * SECOND
JAVA_MIN: Final = 17
PROGRAM_WAIT_MAX: Final = 20.0  # seconds

_KIB: Final = 1 << 10
_GIB: Final = 1 << 30
_CPUIDLE: Final = "/sys/devices/system/cpu/cpuidle/current_governor"
_HALT_POLL: Final = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"
_UDP_SEGMENT: Final = 103  # <linux/udp.h>
_UDP_GRO: Final = 104
_REFUSES_TRAINS: Final = frozenset((errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP))
_PROBE_WAIT: Final = 1.0  # seconds


class CheckStatus(StrEnum):
    """How serious a finding is."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    name: str
    status: CheckStatus
    found: str
    advice: str = "Nothing to do."


def examine(directory: Path) -> Iterator[Finding]:
    """Run every check. Journals would be written in `directory`."""
    yield from (cores(), clock(), real_time(), idle_states())
    yield from (multicast(), multicast_route(), socket_buffers(), trains(), ports())
    yield from (descriptors(), disk(directory), java(), etcd(), namespaces())


def cores() -> Finding:
    """Sites share the cores, and a site that waits for a core is late."""
    count = cores_here()
    found = f"{count}, enough for a ring of {sites_max(PROFILES['lan'], count)} sites with the lan profile here"
    if count >= CORES_WANTED:
        return Finding("cores", CheckStatus.GOOD, found)
    return Finding("cores", CheckStatus.NOTE, found, f"Give the machine {CORES_WANTED} cores, or run one site on it.")


def clock() -> Finding:
    """Releases are as fair as clocks are accurate. A site that does not know its clock error leaves the ring."""
    bound = kernel_bound()
    if bound is None:
        return Finding(
            "clock",
            CheckStatus.BAD,
            "not synchronised, so its error has no bound",
            "Run chrony or a PTP daemon; only deployments on one machine can do without.",
        )
    found = f"synchronised, with an error of at most {_shown(bound)}"
    if bound <= CLOCK_BOUND_WANTED:
        return Finding("clock", CheckStatus.GOOD, found)
    return Finding(
        "clock",
        CheckStatus.NOTE,
        found,
        f"Use PTP or a nearer time server where releases must agree within {_shown(CLOCK_BOUND_WANTED)}.",
    )


def real_time() -> Finding:
    """Ordinary scheduling delays releases on a busy machine."""
    if may_run_in_real_time():
        return Finding("real time", CheckStatus.GOOD, "real-time scheduling is permitted")
    return Finding(
        "real time",
        CheckStatus.NOTE,
        "real-time scheduling is not permitted",
        "Grant CAP_SYS_NICE, so that other programs do not delay releases.",
    )


def idle_states() -> Finding:
    """An idle processor wakes late, and on a virtual machine the host decides when."""
    policy, polls = _read(_CPUIDLE).strip(), _read(_HALT_POLL).strip()
    if policy != "haltpoll" or polls != "0":
        return Finding("idle states", CheckStatus.GOOD, f"the idle policy is {policy or 'that of the kernel'}")
    return Finding(
        "idle states",
        CheckStatus.NOTE,
        "processors of this virtual machine halt as soon as they are idle",
        "Boot with idle=poll or use `fairtape up --keep-awake` where releases must be accurate to a millisecond.",
    )


def multicast() -> Finding:
    """Send one datagram to a group on the loopback interface, and receive it."""
    try:
        works = multicast_works(LOOPBACK)
    except UserError:  # no group can be joined
        works = False
    if works:
        return Finding("multicast", CheckStatus.GOOD, "a datagram to a group came back on the loopback interface")
    return Finding(
        "multicast",
        CheckStatus.NOTE,
        "a datagram to a group did not come back on the loopback interface",
        "Allow multicast with: ip link set lo up multicast on; rings here use a mesh of unicasts until then.",
    )


def multicast_route() -> Finding:
    """Connecting a UDP socket looks up the route and sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((GROUP, 9))
            return Finding("multicast route", CheckStatus.GOOD, f"groups are reached from {probe.getsockname()[0]}")
    except OSError as error:
        return Finding(
            "multicast route",
            CheckStatus.NOTE,
            f"there is none ({error.strerror})",
            "Add one with: ip route add 224.0.0.0/4 dev INTERFACE; without it, other hosts are reached by a mesh.",
        )


def socket_buffers() -> Finding:
    """The buffers that a socket gets, and the limits of the kernel."""
    limits = ", ".join(f"{name} {_kernel_limit(name)}" for name in ("rmem_max", "wmem_max"))
    try:
        probe = UdpSocket(bind(LOOPBACK, 0))
    except (UserError, OSError) as error:
        return Finding(
            "socket buffers", CheckStatus.BAD, f"no socket can be opened ({error})", "Bring up interface lo."
        )
    granted = min(probe.receive_buffer, probe.send_buffer)
    probe.close()
    found = f"{granted // _KIB:,} KiB of {BUFFER_SIZE // _KIB:,} KiB granted ({limits})"
    if granted >= BUFFER_SIZE:
        return Finding("socket buffers", CheckStatus.GOOD, found)
    return Finding(
        "socket buffers",
        CheckStatus.NOTE,
        found,
        "Bursts may be lost and retransmitted; raise the limits with: "
        f"sysctl -w net.core.rmem_max={BUFFER_SIZE} net.core.wmem_max={BUFFER_SIZE}",
    )


def trains() -> Finding:
    """Send a train of four datagrams in one call, and see how it arrives."""
    name = "UDP offload"
    try:
        together = _train_of_four()
    except OSError as error:
        if error.errno not in _REFUSES_TRAINS:
            found = f"no datagram passes the loopback interface ({error.strerror or error})"
            return Finding(name, CheckStatus.BAD, found, "Bring it up with: ip link set lo up")
        together = 0
    if together == 4:
        return Finding(name, CheckStatus.GOOD, "UDP_SEGMENT and UDP_GRO move many datagrams in one call")
    missing = "UDP_GRO" if together else "UDP_SEGMENT"
    return Finding(
        name, CheckStatus.NOTE, f"{missing} is not supported", "Use Linux 5.0 or newer for more messages per second."
    )


def ports() -> Finding:
    """Rings on one machine take their ports from a range below the ephemeral ports."""
    named = f"{PORTS.start} to {PORTS.stop - 1}"
    try:
        free_ports(PORTS_WANTED)
    except UserError as error:
        return Finding("ports", CheckStatus.BAD, str(error).partition(";")[0], f"Free some of the ports {named}.")
    first = _kernel_ports_from()
    if first is not None and first < PORTS.stop:
        return Finding(
            "ports",
            CheckStatus.NOTE,
            f"{named} are free, but ephemeral ports begin at {first}",
            f"Separate them with: sysctl -w net.ipv4.ip_local_port_range='{PORTS.stop + 768} 60999'",
        )
    return Finding("ports", CheckStatus.GOOD, f"at least {PORTS_WANTED} of {named} are free")


def descriptors() -> Finding:
    """Each process keeps sockets and files open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,} files at once in a process"
    if limit == resource.RLIM_INFINITY or limit >= FILES_WANTED:
        return Finding("file descriptors", CheckStatus.GOOD, found)
    return Finding("file descriptors", CheckStatus.NOTE, found, f"Raise the limit with: ulimit -n {FILES_WANTED}")


def disk(directory: Path) -> Finding:
    """Space for journals, and how long a sync takes."""
    name = "disk"
    try:
        free = shutil.disk_usage(directory).free
        syncs = _sync_periods(directory)
    except OSError as error:
        return Finding(
            name,
            CheckStatus.BAD,
            f"nothing can be written in {directory} ({error.strerror})",
            "Name a folder that you can write with --directory.",
        )
    usual, worst = int(median(syncs)), max(syncs)
    found = f"{free / _GIB:,.1f} GiB free in {directory}; a sync takes {_shown(usual)}, {_shown(worst)} at worst"
    if free < FREE_MIN:
        return Finding(
            name, CheckStatus.BAD, found, f"Free at least {FREE_MIN // _GIB} GiB, or name another --directory."
        )
    if (kind := _file_system(directory)) in ("tmpfs", "ramfs"):
        return Finding(
            name, CheckStatus.NOTE, f"{found}; it is a {kind}", "Use a real disk: this one is lost at a restart."
        )
    if free < FREE_WANTED:
        return Finding(name, CheckStatus.NOTE, found, f"Plan for {FREE_WANTED // _GIB} GiB: journals only grow.")
    if usual > SYNC_WANTED:
        return Finding(name, CheckStatus.NOTE, found, "Use a faster disk, or journals that sync at an interval.")
    return Finding(name, CheckStatus.GOOD, found)


def java() -> Finding:
    """Spark, and so the pipeline, needs Java; the ring does not."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    advice = (
        f"Only the pipeline needs Java: set JAVA_HOME to version {JAVA_MIN} or newer, or install the extra `pipeline`,"
        " which includes one."
    )
    if program is None:
        return Finding("java", CheckStatus.NOTE, f"none in JAVA_HOME={home}" if home else "none on the PATH", advice)
    version = _java_version(_output(program, "-version"))
    if version is None:
        return Finding("java", CheckStatus.NOTE, f"{program} does not print its version", advice)
    status = CheckStatus.GOOD if version >= JAVA_MIN else CheckStatus.NOTE
    return Finding("java", status, f"version {version}, {program}", "Nothing to do." if version >= JAVA_MIN else advice)


def etcd() -> Finding:
    """The formation store of a deployment on several machines. SQLite is built in."""
    program = shutil.which("etcd")
    version = re.search(r"etcd Version: (\S+)", _output(program, "--version")) if program else None
    if version:
        return Finding("etcd", CheckStatus.GOOD, f"version {version[1]}, {program}")
    return Finding(
        "etcd",
        CheckStatus.NOTE,
        "not installed",
        "Install etcd-server here or elsewhere if reformation servers run on several machines; else SQLite suffices.",
    )


def namespaces() -> Finding:
    """Drills that cut links between sites need a network namespace for each."""
    unshare = shutil.which("unshare")
    permitted = unshare is not None and _succeeds(unshare, "--net", "true")
    if permitted and shutil.which("ip") is not None:
        return Finding("network namespaces", CheckStatus.GOOD, "permitted")
    return Finding(
        "network namespaces",
        CheckStatus.NOTE,
        "permitted, but there is no ip command" if permitted else "not permitted",
        "Install iproute2 and be root for drills that cut real links between sites; nothing else needs it.",
    )


def _train_of_four() -> int:
    """Of four datagrams, sent in one call, the number that the first receive call returned."""
    size = 100
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((LOOPBACK, 0))
        receiver.settimeout(_PROBE_WAIT)
        with suppress(OSError):  # not supported: the datagrams arrive one by one
            receiver.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        segment = [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("=H", size))]
        sender.sendmsg([bytes(4 * size)], segment, 0, receiver.getsockname())
        return len(receiver.recv(1 << 16)) // size


def _sync_periods(directory: Path) -> list[Duration]:
    """How long syncs took; fewer of them on a very slow disk."""
    periods: list[Duration] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        while len(periods) < SYNCS and sum(periods) < SYNCS_PERIOD_MAX:
            file.write(bytes(4 * _KIB))
            began_at = time.perf_counter_ns()
            file.flush()
            os.fsync(file.fileno())
            periods.append(time.perf_counter_ns() - began_at)
    return periods


def _file_system(directory: Path) -> str:
    """The file system at the longest mount point above the folder; empty where the kernel does not list it."""
    resolved = directory.resolve()
    kinds = {}
    for line in _read("/proc/self/mounts").splitlines():
        _, point, kind, *_ = line.split()
        kinds[Path(point)] = kind
    return next((kinds[folder] for folder in (resolved, *resolved.parents) if folder in kinds), "")


def _kernel_limit(name: str) -> str:
    text = _read(f"/proc/sys/net/core/{name}").strip()
    return f"{int(text) // _KIB:,} KiB" if text.isdigit() else "unknown"


def _kernel_ports_from() -> int | None:
    """The first ephemeral port."""
    numbers = _read("/proc/sys/net/ipv4/ip_local_port_range").split()
    return int(numbers[0]) if numbers else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _java_version(output: str) -> int | None:
    """17 of `openjdk version "17.0.9"`, and 8 of the older `java version "1.8.0_392"`."""
    numbers = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(numbers[1]) if numbers else None


def _output(program: str, *arguments: str) -> str:
    """What a program prints; empty where it cannot be run or takes too long."""
    finished = _run(program, *arguments)
    return "" if finished is None else finished.stdout


def _succeeds(program: str, *arguments: str) -> bool:
    finished = _run(program, *arguments)
    return finished is not None and finished.returncode == 0


def _run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(  # noqa: S603 - an installed program with our arguments
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROGRAM_WAIT_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _shown(period: Duration) -> str:
    if period < MILLISECOND:
        return f"{period / MICROSECOND:,.0f} µs"
    return f"{period / MILLISECOND:,.1f} ms"


def check_ready(deployment: Deployment) -> Duration:
    """Raise `UserError` where this machine cannot run all processes of a deployment.

    Every address must be free, and the store must answer soon enough. It is checked before anything is started:
    otherwise each process would report the same error by itself, while others already run. Returns how long a write to
    the store takes.
    """
    publishers = {} if deployment.edge is None else deployment.edge.publishers
    nodes = (*deployment.sites, *deployment.reformers)
    addresses = {f"{node.kind.value}s.{node.name}.address": (node.host, node.port) for node in nodes}
    addresses |= {f"edge.publishers.{name}.requests": place.requests for name, place in publishers.items()}
    with ExitStack() as bound:
        for field, address in addresses.items():
            try:
                bound.enter_context(bind(*address))
            except UserError as error:
                raise UserError(
                    f"{deployment.folder / FILE}: {field} cannot be used here: {error}; "
                    "start the sites of other machines there, with: fairtape node DIR NAME"
                ) from None
    with closing(open_formation_store(deployment)) as store:
        return check_store_speed(deployment, store)


def check_store_speed(
    deployment: Deployment, store: FormationStore, *, clock: Callable[[], Instant] = time.perf_counter_ns
) -> Duration:
    """How long a write to the store takes. Raises `UserError` if that is too long for the longest lease of a leader.

    Decision 68, Leader's lease: a lease is several times as long.
    """
    named = f"{deployment.folder / FILE}: store.url is {deployment.store!r}"
    period = measure_writes(store, clock=clock)
    if period is None:
        raise UserError(f"{named}, which does not carry out a write; free its disk, or name another store")
    longest = max(deployment.leader_lease, LEASE_MAX)
    if STORE_CALLS_PER_LEASE * period > longest:
        raise UserError(
            f"{named}, where a write takes {_shown(period)} (99th percentile); the longest lease of a reformation"
            f" server is {_shown(longest)}, so a write may take {_shown(longest // STORE_CALLS_PER_LEASE)}: name a"
            " store on a faster disk, or stop what keeps this one busy"
        )
    return period


def store_notice(deployment: Deployment, period: Duration) -> str | None:
    """What a store that takes so long means for failovers; None: nothing."""
    lease = STORE_CALLS_PER_LEASE * period
    if lease <= deployment.leader_lease:
        return None
    return (
        f"a write to the store takes {_shown(period)} (99th percentile), so the lease of the leading reformation server"
        f" is {_shown(lease)} instead of {_shown(deployment.leader_lease)}: another one replaces it later"
    )
