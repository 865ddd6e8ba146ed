"""Signatures over a publication's header and the root of its chunk tree, and over plans for the end of a run."""

from __future__ import annotations

import msgspec

from isthmus.errors import IdentityError
from isthmus.identity import Identity, verify
from isthmus.terms import EndPlan, Header, SignedHeader
from isthmus.wire.tree import ROOT_BYTES

SIGNATURE_BYTES = 64

_DOMAIN = b"isthmus publication 1\x00"
_PLAN_DOMAIN = b"isthmus end plan 1\x00"


def signing_bytes(header: Header, root: bytes) -> bytes:
    """What is signed: a domain, the header as MessagePack in the order of its fields, and the root."""
    return _DOMAIN + msgspec.msgpack.encode(header) + root


def sign_header(identity: Identity, header: Header, root: bytes) -> SignedHeader:
    """The header and root under the signature of ``identity``."""
    return SignedHeader(header, root, identity.sign(signing_bytes(header, root)))


def verify_signed(certificate_pem: bytes, signed: SignedHeader) -> None:
    """Check a signed header against the identity certificate of the island it names as its sender.

    Raises:
        IdentityError: the signature or the root is malformed, or the signature is not that identity's.
    """
    if len(signed.root) != ROOT_BYTES or len(signed.signature) != SIGNATURE_BYTES:
        raise IdentityError(
            "a signed header is malformed",
            got=f"root of {len(signed.root)} and signature of {len(signed.signature)} bytes",
            wanted=f"{ROOT_BYTES} and {SIGNATURE_BYTES}",
        )
    verify(certificate_pem, signing_bytes(signed.header, signed.root), signed.signature)


def sign_plan(identity: Identity, plan: EndPlan) -> bytes:
    """The signature of ``identity`` over a plan for the end of a run."""
    return identity.sign(_PLAN_DOMAIN + msgspec.msgpack.encode(plan))


def verify_plan(certificate_pem: bytes, plan: EndPlan, signature: bytes) -> None:
    """Check a plan's signature against the identity certificate of the island it names as its author.

    Raises:
        IdentityError: The signature is not that identity's.
    """
    verify(certificate_pem, _PLAN_DOMAIN + msgspec.msgpack.encode(plan), signature)
