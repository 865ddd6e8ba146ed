"""Identities, session certificates and the owner's key."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509

from isthmus.errors import IdentityError
from isthmus.identity import (
    certificate_fingerprint,
    certificate_from_base64,
    certificate_name,
    certificate_to_base64,
    check_issued_by,
    create_identity,
    create_owner_key,
    issue_session_certificate,
    load_identity,
    load_owner_key,
    verify,
    verify_owner,
)

EAST = create_identity("us-east")
ASIA = create_identity("asia")


def test_a_signature_verifies_against_its_own_certificate_only():
    signature = EAST.sign(b"tokens")
    verify(EAST.certificate_pem, b"tokens", signature)
    with pytest.raises(IdentityError, match="signature is wrong"):
        verify(ASIA.certificate_pem, b"tokens", signature)
    with pytest.raises(IdentityError):
        verify(EAST.certificate_pem, b"token", signature)


def test_an_identity_survives_its_files():
    again = load_identity("us-east", EAST.key_pem, EAST.certificate_pem)
    verify(EAST.certificate_pem, b"x", again.sign(b"x"))
    assert again == EAST


@pytest.mark.parametrize(
    ("name", "key", "certificate", "words"),
    [
        ("asia", EAST.key_pem, EAST.certificate_pem, "another island's"),
        ("us-east", ASIA.key_pem, EAST.certificate_pem, "does not belong"),
        ("us-east", b"junk", EAST.certificate_pem, "does not parse"),
        ("us-east", EAST.key_pem, b"junk", "does not parse"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(name, key, certificate, words):
    with pytest.raises(IdentityError, match=words):
        load_identity(name, key, certificate)


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_name_that_no_certificate_can_hold_is_refused(name):
    with pytest.raises(IdentityError):
        create_identity(name)


def test_a_certificate_survives_one_line_of_base64():
    text = certificate_to_base64(EAST.certificate_pem)
    assert "\n" not in text
    assert certificate_from_base64(text) == EAST.certificate_pem
    assert certificate_name(EAST.certificate_pem) == "us-east"
    assert certificate_fingerprint(EAST.certificate_pem) != certificate_fingerprint(ASIA.certificate_pem)
    for broken in ("?", text[:-8], base64.b64encode(b"junk").decode()):
        with pytest.raises(IdentityError):
            certificate_from_base64(broken)


def test_a_session_certificate_names_its_issuer_and_no_other():
    certificate, _ = issue_session_certificate(EAST)
    der = ssl.PEM_cert_to_DER_cert(certificate.decode())
    check_issued_by(der, EAST.certificate_pem)
    with pytest.raises(IdentityError, match="another identity"):
        check_issued_by(der, ASIA.certificate_pem)


def test_an_island_of_the_same_name_with_another_key_issued_nothing():
    certificate, _ = issue_session_certificate(EAST)
    der = ssl.PEM_cert_to_DER_cert(certificate.decode())
    with pytest.raises(IdentityError):
        check_issued_by(der, create_identity("us-east").certificate_pem)


@pytest.mark.parametrize("moment", [datetime(1971, 1, 1, tzinfo=UTC), datetime(9990, 1, 1, tzinfo=UTC)])
def test_no_clock_is_so_wrong_that_a_certificate_is_out_of_date(moment):
    session, _ = issue_session_certificate(EAST)
    for pem in (EAST.certificate_pem, session):
        certificate = x509.load_pem_x509_certificate(pem)
        assert certificate.not_valid_before_utc < moment < certificate.not_valid_after_utc


def test_a_private_key_does_not_show_in_the_repr():
    assert "PRIVATE" not in repr(EAST)
    assert "PRIVATE" not in repr(create_owner_key())


def test_the_owner_signs_and_anybody_checks_with_the_public_text():
    owner = create_owner_key()
    signature = load_owner_key(owner.key_pem).sign(b"roster")
    verify_owner(owner.public, b"roster", signature)
    with pytest.raises(IdentityError, match="not the owner's"):
        verify_owner(create_owner_key().public, b"roster", signature)
    with pytest.raises(IdentityError, match="does not parse"):
        verify_owner("not base64!", b"roster", signature)
    with pytest.raises(IdentityError):
        load_owner_key(EAST.certificate_pem)
