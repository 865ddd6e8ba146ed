"""Addresses as text."""

from __future__ import annotations

import pytest

from isthmus.addresses import join_address, split_address


@pytest.mark.parametrize(("host", "port"), [("example.net", 47110), ("::1", 0), ("10.0.0.1", 65535)])
def test_an_address_splits_into_the_host_and_port_it_was_joined_from(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "address", ["", "host", ":80", "host:", "host:x", "host:70000", "::1:80", "[::1]", "a b:80", "host:٣"]
)
def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="Input should"):
        split_address(address)
