"""A certificate authority for tests, and certificates that it signs, for TLS on loopback."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = timedelta(days=2)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, each in a file."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority for tests."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("an authority")
        built = self._builder(self._name, self._key).issuer_name(self._name)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = folder / "authority.pem"
        self._write(built.add_extension(usage, critical=True), self.certificate)

    def identity(self, name: str) -> Identity:
        """A new identity, for either end of a loopback connection: etcd's gateway is a client of its own server."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        places = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
        built = self._builder(_named(name), key).issuer_name(self._name)
        self._write(built.add_extension(uses, critical=False).add_extension(places, critical=False), found.certificate)
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return found

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - VALID_FOR)
            .not_valid_after(now + VALID_FOR)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _write(self, built: x509.CertificateBuilder, path: Path) -> None:
        path.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
