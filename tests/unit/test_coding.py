"""By which codec a publication is coded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headers import header
from isthmus.clock import VirtualClock
from isthmus.codec import NO_CODEC
from isthmus.errors import CodecError
from isthmus.session import cut_model
from isthmus.session.coding import Coded, Coder
from isthmus.transport import MemoryNetwork


class Publisher:
    """One matrix that an edge refers to as it was in the beginning, and what codes how far it is from there."""

    def __init__(self, codec: str = "int4") -> None:
        self.model = nn.Linear(64, 8, bias=False)
        self.begun = self.model.weight.detach().clone()
        self.slow = cut_model(self.model, num_fragments=1, peers=("b",), embedding_codec=codec).slow
        network = MemoryNetwork(VirtualClock(), islands=("a", "b"), run="ab" * 32)
        self.coder = Coder(self.slow, network.open("a", 1), codec)

    def publish(self, moved: float, codec: str = "") -> Coded:
        with torch.no_grad():
            self.model.weight.copy_(self.begun + moved)
        self.slow.depart(0, outer_lr=1.0, momentum=0.0)
        coded = self.coder.code(header(0, codec, 0, sender="a", receiver="b"))
        assert coded.payload.nbytes == self.slow.payload_bytes(0, coded.codec)
        return coded


def test_what_stands_out_is_coded_in_8_bits_and_what_follows_is_not():
    publisher = Publisher()
    codecs = [publisher.publish(moved).codec for moved in (0.1, 0.1, 0.1, 0.1, 0.5, 0.1)]
    assert codecs == ["int4", "int4", "int4", "int4", "int8", "int4"]


def test_what_was_coded_in_8_bits_is_a_payload_of_8_bits():
    publisher = Publisher()
    for _ in range(4):
        publisher.publish(0.1)
    coded = publisher.publish(0.5)
    again = memoryview(bytearray(publisher.slow.payload_bytes(0, "int8")))
    assert publisher.slow.encode("b", 0, "int8", again) == coded.rms == pytest.approx(0.5, rel=1e-6)
    assert coded.payload == again


def test_the_codec_that_is_asked_for_is_taken_and_forgotten():
    publisher = Publisher()
    assert [publisher.publish(0.1, "fp32").codec for _ in range(5)] == ["fp32"] * 5
    assert not publisher.coder.state_dict()
    assert publisher.publish(9.0).codec == "int4"


def test_a_publication_without_payload_codes_nothing():
    coded = Publisher().publish(0.1, NO_CODEC)
    assert (coded.codec, coded.payload.nbytes, coded.rms) == (NO_CODEC, 0, None)


def test_without_a_reference_everything_is_coded_without_loss_and_no_surge_is_known():
    publisher = Publisher()
    publisher.slow.clear("b", 0)
    assert publisher.publish(0.1).codec == "fp32"
    assert not publisher.coder.state_dict()


def test_a_history_is_stored_and_forgotten_with_its_reference():
    publisher, again = Publisher(), Publisher()
    for _ in range(4):
        publisher.publish(0.1)
    again.coder.load_state_dict(publisher.coder.state_dict())
    assert again.publish(0.5).codec == "int8"
    again.coder.forget("b", 0)
    assert again.publish(0.5).codec == "int4"


def test_what_is_not_finite_is_refused_and_leaves_no_trace():
    publisher = Publisher()
    publisher.publish(0.1)
    before = publisher.coder.state_dict()
    with pytest.raises(CodecError, match="'weight': rows hold a value that is not finite"):
        publisher.publish(float("inf"))
    assert publisher.coder.state_dict() == before
