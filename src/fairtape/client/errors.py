"""The error of the client."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairtape.core.errors import FormatError, UserError


class ClientError(ValueError):
    """One sentence that names the argument or the source, what was found and the remedy."""


@contextmanager
def as_client_error() -> Iterator[None]:
    """Raise the errors of lower packages as `ClientError`."""
    try:
        yield
    except (UserError, FormatError) as error:
        raise ClientError(str(error)) from None
