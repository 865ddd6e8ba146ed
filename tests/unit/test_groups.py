"""Slow state in matrices of rows: every tensor is treated as it would be alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from headers import header
from isthmus import mixing
from isthmus.codec import CODECS, codec_of
from isthmus.errors import ShapeError
from isthmus.fragments import Entry, Fragment, Kind, Policy
from isthmus.session import cut_model
from isthmus.session.groups import Scratch, group_entries, named, stack
from isthmus.session.orders import Arrive, Mode
from isthmus.session.slow import SlowState

OUTER = {"outer_lr": 0.7, "momentum": 0.6}


class Odd(nn.Module):
    """Tensors of many shapes and strides, one larger than what is worked on at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(60, 130)
        self.experts = nn.Parameter(torch.randn(3, 700, 130))
        self.body = nn.Linear(130, 70)
        self.turned = nn.Parameter(torch.randn(130, 90).t())
        self.conv = nn.Conv2d(8, 6, 3).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.gains = nn.Parameter(torch.randn(26)[::2])
        self.register_buffer("load", torch.zeros(7))


def of_model(**changes: object) -> tuple[nn.Module, SlowState]:
    model = Odd()
    wanted = {"num_fragments": 2, "peers": ("b",), "embedding_codec": "int8"} | changes
    return model, cut_model(model, **wanted).slow


def device_of(_: str) -> torch.device:
    return torch.device("cpu")


def train(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.01 * (1 + len(name)))


def published(slow: SlowState, fragment: int, codec: str) -> memoryview:
    payload = memoryview(bytearray(slow.payload_bytes(fragment, codec)))
    slow.encode("b", fragment, codec, payload)
    return payload


def meet(slow: SlowState, fragment: int, codec: str, mine: memoryview, theirs: memoryview) -> bytes:
    own, other = (header(fragment, codec, mine.nbytes, weight_tokens=tokens) for tokens in (10, 30))
    return slow.arrive(Arrive(("b",), fragment, own, (other,), 0, Mode.CORRECT), [mine, theirs])


def coded(entry: Entry, codec: str, values: torch.Tensor) -> tuple[bytes, torch.Tensor]:
    """A tensor's part of a payload, and what it decodes to."""
    own = CODECS[codec_of(entry.policy, codec, "int8")]
    rows = values.reshape(entry.rows, entry.row_length)
    data, back = torch.empty(entry.rows, own.row_bytes(entry.row_length), dtype=torch.uint8), torch.empty(rows.shape)
    own.encode(rows, data)
    own.decode(data, back)
    return data.numpy().tobytes(), back.view(entry.shape)


@pytest.mark.parametrize("codec", ["int4", "fp32"])
def test_every_tensor_departs_is_coded_and_meets_as_it_would_alone(codec: str):
    model, slow = of_model()
    partner, theirs = of_model()
    begun = {name: tensor.clone() for name, tensor in slow.slow_weights().items()}
    train(model, 1)
    train(partner, 2)
    fast = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for fragment in slow.fragments:
        for each in (slow, theirs):
            each.depart(fragment.index, **OUTER)
        mine, other = (published(each, fragment.index, codec) for each in (slow, theirs))
        said_by_partner = theirs.slow_weights()
        expected = b""
        weights = {}
        for entry in fragment.entries:
            name, c = entry.name, begun[entry.name]
            a, velocity = c.clone(), torch.zeros(entry.shape)
            if entry.kind is Kind.BUFFER:
                mixing.depart_buffer(a, fast[name])
            else:
                mixing.depart(a, fast[name], velocity, **OUTER)
            data, own = coded(entry, codec, a - c)
            expected += data
            _, others = coded(entry, codec, said_by_partner[name] - c)
            said = mixing.published(c, own)
            merged = mixing.merge_reference(c, [own, others], [0.25, 0.75])
            fast[name] += mixing.arrive(a, published=said, merged=merged)
            weights[name] = a
        assert mine == expected
        meet(slow, fragment.index, codec, mine, other)
        for name, tensor in weights.items():
            assert torch.equal(slow.slow_weights()[name], tensor), name
            assert torch.equal(model.state_dict()[name], fast[name]), name


@pytest.fixture
def threads() -> Iterator[None]:
    here = torch.get_num_threads()
    yield
    torch.set_num_threads(here)


def test_how_much_is_worked_on_at_once_changes_nothing(threads: None):
    results = []
    for count in (1, 4):
        torch.set_num_threads(count)
        model, slow = of_model()
        train(model, 1)
        told = []
        for fragment in slow.fragments:
            slow.depart(fragment.index, **OUTER)
            payload = published(slow, fragment.index, "int4")
            told += [bytes(payload), meet(slow, fragment.index, "int4", payload, payload)]
        results.append([*told, slow.digest(), [tensor.tolist() for tensor in model.state_dict().values()]])
    assert results[0] == results[1]


def test_entries_are_alike_in_kind_policy_and_row_length_and_pieces_cover_their_rows_in_order(threads: None):
    _, slow = of_model()
    torch.set_num_threads(1)
    tensors = slow.slow_weights()
    entries = [entry for fragment in slow.fragments for entry in fragment.entries]
    groups = group_entries(entries, device_of)
    assert sorted(entry.name for group in groups for entry in group.entries) == sorted(tensors)
    for group in groups:
        assert len({(entry.kind, entry.policy, entry.row_length) for entry in group.entries}) == 1
        covered = [
            (span.entry.name, span.first + row) for p in group.pieces for span in p.spans for row in range(span.rows)
        ]
        assert covered == [(entry.name, row) for entry in group.entries for row in range(entry.rows)]
        assert [piece.rows.start for piece in group.pieces[1:]] == [piece.rows.stop for piece in group.pieces[:-1]]
    assert any(len(group.pieces) > 1 for group in groups)


def test_matrices_hold_the_tensors_and_their_views_are_in_name_order():
    entries = [
        Entry(name, (2, 3), Kind.PARAMETER, policy) for name, policy in (("b", Policy.CODED), ("a", Policy.LOSSLESS))
    ]
    tensors = {"a": torch.randn(2, 3), "b": torch.randn(3, 2).t()}
    matrices = stack(group_entries(entries, device_of), tensors)
    views = named(matrices)
    assert list(views) == ["a", "b"]
    assert all(torch.equal(views[name], tensor) for name, tensor in tensors.items())
    views["a"].zero_()
    assert any(not matrix.any() for matrix in matrices.values())


def test_scratch_is_the_same_memory_for_one_piece_after_the_other():
    shapes = {"long": (400, 1000), "short": (7,)}
    entries = [Entry(name, shape, Kind.PARAMETER, Policy.CODED) for name, shape in shapes.items()]
    groups = group_entries(entries, device_of)
    scratch = Scratch(groups, 2)
    pieces = [(group, piece) for group in groups for piece in group.pieces]
    places = []
    for group, piece in pieces:
        first, second = scratch.matrices(group, piece)
        assert first.shape == second.shape == piece.shape
        places.append((first.data_ptr(), second.data_ptr()))
    assert len(pieces) > 2
    assert len(set(places)) == 1


# -- references --------------------------------------------------------------------------------------------------------


def places_of(slow: SlowState, peer: str) -> list[int]:
    return [tensor.data_ptr() for _, tensor in sorted(slow.state_dict()["references"][peer, 0].items())]


def test_a_reference_is_written_over_unless_another_edge_has_it_too():
    _, slow = of_model(peers=("b", "c"), num_fragments=1)
    before = slow.reference_hash("c", 0)
    payload = published(slow, 0, "int4")
    meet(slow, 0, "int4", payload, payload)
    places = places_of(slow, "b")
    assert slow.reference_hash("c", 0) == before
    payload = published(slow, 0, "int4")
    meet(slow, 0, "int4", payload, payload)
    assert places_of(slow, "b") == places
    assert slow.reference_hash("c", 0) == before


def test_the_last_edge_to_be_met_takes_over_what_the_run_began_with():
    _, slow = of_model(num_fragments=1)
    begun = [tensor.data_ptr() for _, tensor in sorted(slow.state_dict()["initial"][0].items())]
    payload = published(slow, 0, "int4")
    meet(slow, 0, "int4", payload, payload)
    assert places_of(slow, "b") == begun
    assert not slow.state_dict()["initial"]


def test_a_cleared_reference_is_written_anew_and_what_is_coded_against_none_is_everything():
    model, slow = of_model(num_fragments=1)
    slow.clear("b", 0)
    payload = published(slow, 0, "fp32")
    reference = meet(slow, 0, "fp32", payload, payload)
    assert reference == slow.reference_hash("b", 0) == slow.initial_hashes[0]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in slow.slow_weights().items())


def test_edges_without_a_reference_come_back_from_a_state():
    _, slow = of_model(peers=("b", "c"))
    for peer in ("b", "c"):
        for fragment in (0, 1):
            slow.clear(peer, fragment)
    _, again = of_model(peers=("b", "c"))
    again.load_state_dict(slow.state_dict())
    assert not any(again.has_reference(peer, fragment) for peer in ("b", "c") for fragment in (0, 1))


@pytest.mark.parametrize("kind", ["initial", "references"])
def test_a_stored_reference_of_another_shape_is_refused(kind: str):
    _, slow = of_model(num_fragments=1)
    if kind == "references":
        payload = published(slow, 0, "int4")
        meet(slow, 0, "int4", payload, payload)
    state = slow.state_dict()
    (stored,) = state[kind].values()
    stored["body.weight"] = torch.zeros(70, 129)
    with pytest.raises(ShapeError, match=r"reference weights of 'body\.weight'"):
        of_model(num_fragments=1)[1].load_state_dict(state)


def test_the_rms_is_that_of_what_may_be_coarsened():
    model, slow = of_model()
    train(model, 1)
    begun = {name: tensor.clone() for name, tensor in slow.slow_weights().items()}
    for fragment in slow.fragments:
        slow.depart(fragment.index, **OUTER)
        payload = memoryview(bytearray(slow.payload_bytes(fragment.index, "int4")))
        rms = slow.encode("b", fragment.index, "int4", payload)
        assert rms == pytest.approx(expected_rms(slow, fragment, begun), rel=1e-5)


def expected_rms(slow: SlowState, fragment: Fragment, begun: dict[str, torch.Tensor]) -> float:
    names = [entry.name for entry in fragment.entries if entry.policy is not Policy.LOSSLESS]
    moved = torch.cat([(slow.slow_weights()[name] - begun[name]).flatten() for name in names])
    return float(moved.double().square().mean().sqrt())
