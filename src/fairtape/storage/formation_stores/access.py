"""What a cluster of etcd may want of those who ask it: a certificate, a user and a password; and whom they trust.

Everything secret stands in files of its own, and a file is looked at when the store is opened: of all machines that
share a deployment file, only those with a reformation server need to have them.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError

PASSWORD_MAX: Final = 1_024  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """The way into a store of etcd; by default anybody's. The names are those of the deployment file."""

    ca_file: Path | None = None  # who vouches for the cluster; None: the authorities that this machine trusts
    cert_file: Path | None = None  # who we are, to a cluster that wants certificates of its clients
    key_file: Path | None = None
    user: str = ""
    password_file: Path | None = None

    @property
    def wants_tls(self) -> bool:
        """Whether it makes sense only with `https`."""
        return self.ca_file is not None or self.cert_file is not None

    def context(self) -> ssl.SSLContext:
        """What TLS needs; a `UserError` names the file that is no good."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("ca_file", self.ca_file, error, "the certificate of an authority") from None
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_passphrase)
            except FileNotFoundError as error:
                missing = "key_file" if self.cert_file.exists() else "cert_file"
                raise _unusable(missing, getattr(self, missing), error, "a certificate or its key") from None
            except (OSError, ssl.SSLError, ValueError) as error:
                raise _unusable("cert_file", self.cert_file, error, "a certificate that store.key_file fits") from None
        return context

    def password(self) -> str:
        """The first line of its file."""
        path = self.password_file
        assert path is not None
        try:
            with path.open("rb") as file:
                lines = file.read(PASSWORD_MAX).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable("password_file", path, error, "a password") from None
        if not lines or not lines[0]:
            raise UserError(
                f"store.password_file is {str(path)!r}, which is empty; write the password in its first line"
            )
        return lines[0]


OPEN: Final = EtcdAccess()  # a store that wants nothing of anybody


def _no_passphrase() -> str:
    """Nobody is there to be asked for one."""
    raise ValueError("the key is encrypted")


def _unusable(field: str, path: Path | None, error: Exception, wanted: str) -> UserError:
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    why = getattr(error, "reason", None) or why
    return UserError(f"store.{field} is {str(path)!r}, which cannot be used ({why}); name a file with {wanted}")
