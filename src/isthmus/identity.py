"""Who is who: Ed25519 identities of islands, session certificates under them, and the owner's key of a run.

An identity certificate is self-signed, may issue session certificates, and is valid from 1970 to 9999: dates
are not trusted, because clocks may be hours off; a key is revoked by leaving it out of the next roster.
Certificates travel as PEM, or as one line of base64. The owner signs rosters with raw Ed25519 in base64.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.errors import IdentityError

VALID_FROM = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
VALID_TO = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)

_MEND_KEY = "Take the file that `isthmus init` wrote, or make a new identity and have it entered in the roster."


@dataclass(frozen=True)
class Identity:
    """An island's name, its private key (PEM, PKCS 8, not encrypted) and its identity certificate (PEM)."""

    name: str
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return _load_private_key(self.key_pem)

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``data`` by this identity's key."""
        return self._key.sign(data)


@dataclass(frozen=True)
class OwnerKey:
    """The private key of a run's owner (PEM); it signs rosters and nothing else."""

    key_pem: bytes = field(repr=False)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return _load_private_key(self.key_pem)

    @property
    def public(self) -> str:
        """The raw 32-byte public key in base64, as a run file holds it."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode("ascii")

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``data``."""
        return self._key.sign(data)


def create_identity(name: str, hosts: Sequence[str] = ()) -> Identity:
    """Make a new key and its self-signed certificate for the island ``name``.

    Args:
        name: Who it is.
        hosts: Host names and addresses that the certificate is made out to, for those who look at that.

    Raises:
        IdentityError: ``name`` is empty or longer than the 64 characters that a certificate can hold.
    """
    if not 1 <= len(name) <= 64:
        raise IdentityError("an island's name does not fit a certificate", got=repr(name), wanted="1 to 64 characters")
    key = Ed25519PrivateKey.generate()
    certificate = _certificate(
        subject=name, public_key=key.public_key(), issuer=name, issuer_key=key, authority=True, hosts=hosts
    )
    return Identity(name, _private_pem(key), certificate)


def load_identity(name: str, key_pem: bytes, certificate_pem: bytes) -> Identity:
    """An identity from its two files' bytes, checked to belong together and to ``name``.

    Raises:
        IdentityError: a file does not parse, is not Ed25519, is another island's, or the two do not match.
    """
    identity = Identity(name, key_pem, certificate_pem)
    found = certificate_name(certificate_pem)
    if found != name:
        raise IdentityError("the identity certificate is another island's", got=found, wanted=name)
    if _load_private_key(key_pem).public_key() != _public_key(certificate_pem):
        raise IdentityError(
            f"the private key of {name} does not belong to its certificate",
            mend=_MEND_KEY,
        )
    return identity


def certificate_name(certificate_pem: bytes) -> str:
    """The island's name inside an identity certificate.

    Raises:
        IdentityError: the certificate does not parse or holds no name.
    """
    names = _load_certificate(certificate_pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise IdentityError("an identity certificate holds no single name", got=f"{len(names)} names")
    return str(names[0].value)


def certificate_fingerprint(certificate_pem: bytes) -> str:
    """SHA-256 of the certificate (DER), in hex, for people to compare.

    Raises:
        IdentityError: the certificate does not parse.
    """
    return _load_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def certificate_to_base64(certificate_pem: bytes) -> str:
    """The certificate (DER) as one line of base64, for a roster.

    Raises:
        IdentityError: the certificate does not parse.
    """
    der = _load_certificate(certificate_pem).public_bytes(serialization.Encoding.DER)
    return base64.b64encode(der).decode("ascii")


def certificate_from_base64(text: str) -> bytes:
    """The PEM of a certificate that ``certificate_to_base64`` wrote.

    Raises:
        IdentityError: the text is not base64 or not an Ed25519 certificate.
    """
    try:
        certificate = x509.load_der_x509_certificate(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise IdentityError("a certificate in base64 does not parse", got=str(error)) from error
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    _public_key(pem)
    return pem


def verify(certificate_pem: bytes, data: bytes, signature: bytes) -> None:
    """Check that the holder of an identity certificate signed ``data``.

    Raises:
        IdentityError: it did not, or the certificate does not parse.
    """
    try:
        _public_key(certificate_pem).verify(signature, data)
    except InvalidSignature as error:
        raise IdentityError("a signature is wrong", wanted=f"one by {certificate_name(certificate_pem)}") from error


def create_owner_key() -> OwnerKey:
    """Make a new key for the owner of a run."""
    return OwnerKey(_private_pem(Ed25519PrivateKey.generate()))


def load_owner_key(key_pem: bytes) -> OwnerKey:
    """An owner's key from its file's bytes.

    Raises:
        IdentityError: the bytes are not an unencrypted Ed25519 private key in PEM.
    """
    _load_private_key(key_pem)
    return OwnerKey(key_pem)


def verify_owner(public: str, data: bytes, signature: bytes) -> None:
    """Check that the owner with the public key ``public`` (raw, base64) signed ``data``.

    Raises:
        IdentityError: the key is malformed or the signature is not its own.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    except (binascii.Error, ValueError) as error:
        raise IdentityError(
            "the owner's public key does not parse", got=repr(public), wanted="32 bytes of Ed25519 in base64"
        ) from error
    try:
        key.verify(signature, data)
    except InvalidSignature as error:
        raise IdentityError("a signature is not the owner's", wanted=f"one by {public}") from error


def issue_session_certificate(identity: Identity) -> tuple[bytes, bytes]:
    """A fresh key for one process, with a certificate that the identity signed.

    Returns:
        The certificate and the private key, both PEM.
    """
    key = Ed25519PrivateKey.generate()
    certificate = _certificate(
        subject=f"{identity.name} session"[:64],
        public_key=key.public_key(),
        issuer=certificate_name(identity.certificate_pem),
        issuer_key=_load_private_key(identity.key_pem),
        authority=False,
    )
    return certificate, _private_pem(key)


def check_issued_by(session_certificate_der: bytes, certificate_pem: bytes) -> None:
    """Check that an identity certificate's holder issued the session certificate of a TLS peer.

    Raises:
        IdentityError: it did not, or one of them does not parse.
    """
    try:
        session = x509.load_der_x509_certificate(session_certificate_der)
        session.verify_directly_issued_by(_load_certificate(certificate_pem))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise IdentityError(
            "a session certificate was issued by another identity",
            wanted=f"one by {certificate_name(certificate_pem)}",
        ) from error


def _certificate(
    *,
    subject: str,
    public_key: Ed25519PublicKey,
    issuer: str,
    issuer_key: Ed25519PrivateKey,
    authority: bool,
    hosts: Sequence[str] = (),
) -> bytes:
    unused = ("crl_sign", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_TO)
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    if not authority:
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return builder.sign(issuer_key, None).public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load_private_key(key_pem: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError("a private key does not parse", got=str(error), mend=_MEND_KEY) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            "a private key is of the wrong kind", got=type(key).__name__, wanted="Ed25519", mend=_MEND_KEY
        )
    return key


@lru_cache(maxsize=256)
def _load_certificate(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise IdentityError("a certificate does not parse", got=str(error), mend=_MEND_KEY) from error


def _public_key(certificate_pem: bytes) -> Ed25519PublicKey:
    key = _load_certificate(certificate_pem).public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise IdentityError("a certificate is of the wrong kind", got=type(key).__name__, wanted="Ed25519")
    return key
