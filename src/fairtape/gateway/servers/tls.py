"""TLS for the doors of a gateway: one certificate and key, for FIX, OUCH and the native protocol alike."""

import ssl
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration

HANDSHAKE_DELAY: Final[Duration] = 10 * SECOND  # within which a client must have agreed on keys
_NO_PASSPHRASE: Final = ""


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """What a server proves itself with. A `UserError` names the file that cannot serve.

    Nobody is there to be asked for a passphrase when a gateway starts again, so a key that needs one is refused.
    """
    for field, path in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UserError(f"{field} is {str(path)!r}, which cannot be read ({error.strerror}); correct it") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file, password=_NO_PASSPHRASE)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise UserError(
            f"cert_file is {str(cert_file)!r} and key_file {str(key_file)!r}, which do not go together ({why});"
            " give a certificate in PEM and its key without a passphrase"
        ) from None
    return context
