"""TLS 1.3, mutual, against the roster's identity certificates and nothing else."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping

from isthmus.errors import IdentityError
from isthmus.identity import Identity, check_issued_by, issue_session_certificate

RECORD_BYTES = 16 * 1024
RECORD_OVERHEAD_BYTES = 22
"""Of a TLS 1.3 record: 5 bytes of header, 1 of content type, 16 of authentication tag."""

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: dates are not trusted."""


def encrypted_bytes(num_bytes: int) -> int:
    """Bytes of ciphertext for ``num_bytes`` written at once."""
    return num_bytes + RECORD_OVERHEAD_BYTES * -(-num_bytes // RECORD_BYTES)


class TlsContexts:
    """The contexts of one process: a session key of its own, signed by the identity, and the roster as trust.

    Args:
        identity: This island.
        certificates: Identity certificates (PEM) of all peers by name.
    """

    def __init__(self, identity: Identity, certificates: Mapping[str, bytes]) -> None:
        self._certificates = dict(certificates)
        chain = b"".join(issue_session_certificate(identity))
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER, chain)
        self.server.num_tickets = 0  # nothing is left unread on a connection that is written one way
        self.client = self._context(ssl.PROTOCOL_TLS_CLIENT, chain)

    def peer_of(self, sock: ssl.SSLSocket) -> str:
        """The island whose identity issued the session certificate at the other end.

        Raises:
            IdentityError: none in the roster did.
        """
        session = sock.getpeercert(binary_form=True)
        for name, certificate in self._certificates.items():
            try:
                check_issued_by(session or b"", certificate)
            except IdentityError:
                continue
            return name
        raise IdentityError("a session certificate was issued by no island of the roster")

    def _context(self, protocol: ssl._SSLMethod, chain: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        for certificate in self._certificates.values():
            context.load_verify_locations(cadata=certificate.decode("ascii"))
        with tempfile.NamedTemporaryFile() as file:  # the ssl module takes keys from files only
            file.write(chain)
            file.flush()
            context.load_cert_chain(file.name)
        return context
