"""What a user of the client is told when something cannot be done as asked."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairtape.core.errors import FormatError, UserError


class ClientError(ValueError):
    """One sentence that names the argument or the source, what was found and the remedy."""


@contextmanager
def as_client_error() -> Iterator[None]:
    """What the rooms below complain about, as the client says it."""
    try:
        yield
    except (UserError, FormatError) as complaint:
        raise ClientError(str(complaint)) from None
