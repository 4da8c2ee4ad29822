"""Transmissions for tests: one source, and its acknowledgments."""

from fairtape.ring.load import NO_LOAD, SiteLoad
from fairtape.ring.sender.transmission import Transmission
from fairtape.ring.sender.window import SendPace, SendWindow, window_max_of
from unit.ring.ring_values import KEYS, SOURCE, STARTS_AT, TIMING

NOW = STARTS_AT
DELAY = TIMING.resend_delay
ROUND_TRIP = TIMING.retry_period
FORMATION = 7
WINDOW = window_max_of(TIMING.token_period)


def open_window(size: int = WINDOW, *, packet_max: int = 1_400, maximum: int | None = None) -> SendWindow:
    """A window that has grown to this size."""
    window = SendWindow(token_period=TIMING.token_period, packet_max=packet_max, maximum=maximum)
    window.size = size
    return window


def sender(
    *, datagram_max: int = 1_400, window: SendWindow | None = None, pace: SendPace | None = None, resilience: int = 0
) -> Transmission:
    return Transmission(
        source=SOURCE,
        incarnation=1,
        stripe=0,
        keys=KEYS,
        datagram_max=datagram_max,
        resend_delay=DELAY,
        round_trip=ROUND_TRIP,
        resilience=resilience,
        window=window or open_window(packet_max=datagram_max),
        pace=pace or SendPace(),
    )


def acknowledge(sending: Transmission, through: int, token: int = 1, *, load: SiteLoad = NO_LOAD) -> None:
    """What a source does on Ack(token) of the current formation."""
    sending.acknowledged(through, token, NOW, load=load)
    sending.ack_received(token, NOW)


def kept_and_in_flight(resilience: int, *, kept: int, flight: int = 0) -> tuple[Transmission, list[bytes]]:
    """A source some of whose blocks, of one message each, are acknowledged by Ack(1) of its formation."""
    sending = sender(resilience=resilience)
    assert sending.enter(FORMATION, NOW)
    sending.offer([bytes(1_300)] * (kept + flight))
    sent = sending.next_blocks(NOW)
    acknowledge(sending, kept, 1)
    assert (sending.kept, sending.in_flight) == (kept, flight)
    return sending, sent
