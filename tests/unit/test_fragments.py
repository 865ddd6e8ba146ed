"""Which tensors islands trade, how they are coded, and how they are cut into fragments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus.errors import ShapeError
from isthmus.fragments import (
    Entry,
    Fragment,
    Kind,
    Policy,
    canonical_name,
    cut,
    default_policy,
    entries_of,
    first_difference,
    layout_digest,
    layout_lines,
    tensors_of,
)


class Layer(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.register_buffer("router_bias", torch.zeros(experts))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rope", torch.zeros(4), persistent=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Parameter(torch.zeros(experts, width, 2 * width))
        self.down = nn.Parameter(torch.zeros(experts, 2 * width, width))


class Model(nn.Module):
    def __init__(self, layers: int = 3, width: int = 32, experts: int = 4, vocabulary: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, experts) for _ in range(layers))
        self.final_norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)


def bits(fragment: Fragment) -> int:
    return sum((32 if e.policy is Policy.LOSSLESS else 4.125) * e.numel for e in fragment.entries)


def named(entries: tuple[Entry, ...]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


def test_an_entry_is_a_matrix_of_rows() -> None:
    entry = Entry("w", (4, 6, 8), Kind.PARAMETER, Policy.CODED)
    assert (entry.rows, entry.row_length, entry.numel) == (24, 8, 192)
    vector = Entry("b", (5,), Kind.PARAMETER, Policy.LOSSLESS)
    assert (vector.rows, vector.row_length, vector.numel) == (1, 5, 5)
    scalar = Entry("s", (), Kind.BUFFER, Policy.LOSSLESS)
    assert (scalar.rows, scalar.row_length, scalar.numel) == (1, 1, 1)


def test_names_lose_the_wrappers_of_compile_and_data_parallel() -> None:
    assert canonical_name("_orig_mod.module.layers.0._orig_mod.weight") == "layers.0.weight"
    assert canonical_name("modules.0.weight") == "modules.0.weight"


def test_wrapped_and_bare_models_have_one_layout() -> None:
    bare = Model()
    wrapped = nn.Module()
    wrapped.module = bare
    assert layout_digest(entries_of(wrapped)) == layout_digest(entries_of(bare))


def test_parameters_and_persistent_float_buffers_are_traded() -> None:
    names = set(tensors_of(Model(layers=1)))
    assert "layers.0.router_bias" in names
    assert not names & {"layers.0.count", "layers.0.rope"}
    assert {"layers.0.up", "tokens.weight", "lm_head.weight"} <= names


def test_policies_follow_names_and_shapes() -> None:
    entries = named(entries_of(Model(layers=1)))
    lossless = {name for name, entry in entries.items() if entry.policy is Policy.LOSSLESS}
    assert lossless == {
        "final_norm.weight",
        "layers.0.norm.weight",
        "layers.0.router.weight",
        "layers.0.router_bias",
    }
    embedding = {name for name, entry in entries.items() if entry.policy is Policy.EMBEDDING}
    assert embedding == {"tokens.weight", "lm_head.weight"}
    assert entries["layers.0.router_bias"].kind is Kind.BUFFER


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("embed.weight", Policy.EMBEDDING),
        ("tok_embeddings.weight", Policy.EMBEDDING),
        ("transformer.wte.weight", Policy.EMBEDDING),
        ("head.weight", Policy.EMBEDDING),
        ("ensemble.0.weight", Policy.CODED),
        ("layers.0.heads.weight", Policy.CODED),
        ("layers.0.mlp.gate_router.weight", Policy.LOSSLESS),
        ("layers.0.router.weight", Policy.LOSSLESS),
        ("layers.0.q_norm.scale", Policy.LOSSLESS),
        ("layers.0.experts.up_bias", Policy.LOSSLESS),
        ("layers.0.attention.weight", Policy.CODED),
    ],
)
def test_the_policy_of_a_matrix_is_told_by_its_name(name: str, policy: Policy) -> None:
    assert default_policy(name, torch.zeros(2, 2), Kind.PARAMETER) is policy


def test_vectors_and_buffers_are_lossless_whatever_their_name() -> None:
    assert default_policy("embed.scale", torch.zeros(3), Kind.PARAMETER) is Policy.LOSSLESS
    assert default_policy("embed.mean", torch.zeros(3, 3), Kind.BUFFER) is Policy.LOSSLESS


def test_another_rule_may_decide_the_policies() -> None:
    entries = entries_of(Model(layers=1), policy_of=lambda name, tensor, kind: Policy.LOSSLESS)
    assert {entry.policy for entry in entries} == {Policy.LOSSLESS}


def test_tied_parameters_appear_once_and_frozen_ones_not_at_all() -> None:
    model = Model(layers=1)
    model.lm_head.weight = model.tokens.weight
    model.layers[0].qkv.weight.requires_grad_(False)
    names = set(tensors_of(model))
    assert "tokens.weight" in names
    assert not names & {"lm_head.weight", "layers.0.qkv.weight"}


def test_the_tensors_are_the_models_own() -> None:
    model = Model(layers=1)
    assert tensors_of(model)["layers.0.up"] is model.layers[0].up
    assert tuple(tensors_of(model)) == tuple(entry.name for entry in entries_of(model))


def one(parameter: torch.Tensor) -> nn.Module:
    model = nn.Module()
    model.fine = nn.Parameter(torch.zeros(2))
    model.odd = nn.Parameter(parameter)
    return model


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (torch.zeros(2, 2, dtype=torch.complex64), "odd.*not real"),
        (torch.zeros(2, 2).to_sparse(), "odd.*sparse"),
        (torch.zeros(0, 2), "odd.*empty"),
        (torch.zeros(2, 2, device="meta"), "odd.*meta device"),
    ],
)
def test_a_tensor_that_cannot_be_traded_is_refused_by_name(parameter: torch.Tensor, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        entries_of(one(parameter))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ShapeError, match="no trainable parameter"):
        entries_of(nn.Linear(2, 2).requires_grad_(False))


def test_two_tensors_of_one_canonical_name_are_refused() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(ShapeError, match="one name"):
        entries_of(model)


@pytest.mark.slow
def test_a_model_on_the_meta_device_can_be_cut() -> None:
    with torch.device("meta"):
        model = Model()
    assert len(cut(entries_of(model), 3)) == 3


@pytest.mark.parametrize(("layers", "fragments"), [(3, 1), (3, 2), (3, 3), (3, 4), (6, 4), (12, 8), (48, 16), (60, 24)])
def test_fragments_hold_every_entry_once_and_are_balanced(layers: int, fragments: int) -> None:
    with torch.device("meta"):
        entries = entries_of(Model(layers=layers))
    pieces = cut(entries, fragments)
    assert [piece.index for piece in pieces] == list(range(fragments))
    assert sorted(e.name for piece in pieces for e in piece.entries) == [e.name for e in entries]
    assert max(map(bits, pieces)) <= 1.25 * min(map(bits, pieces))


def test_a_mixture_of_33_billion_parameters_is_balanced() -> None:
    with torch.device("meta"):
        entries = entries_of(Model(layers=60, width=2048, experts=32, vocabulary=150_000))
    assert sum(entry.numel for entry in entries) > 32e9
    for fragments in (16, 20, 24):
        pieces = cut(entries, fragments)
        assert max(map(bits, pieces)) <= 1.25 * min(map(bits, pieces))


def test_the_layers_of_a_fragment_are_a_stride_apart() -> None:
    with torch.device("meta"):
        entries = [e for e in entries_of(Model(layers=12)) if e.name.startswith("layers.")]
    for piece in cut(entries, 4):
        assert {int(e.name.split(".")[1]) % 4 for e in piece.entries} == {piece.index}


def test_the_cut_does_not_depend_on_the_order_of_the_entries() -> None:
    entries = entries_of(Model(layers=5))
    assert cut(entries[::-1], 4) == cut(entries, 4)


def test_every_fragment_has_an_entry_even_where_sizes_allow_no_balance() -> None:
    sizes = [1000, 1, 1, 1]
    entries = [Entry(f"w{i}", (s, 128), Kind.PARAMETER, Policy.CODED) for i, s in enumerate(sizes)]
    assert all(piece.entries for piece in cut(entries, 4))


@pytest.mark.parametrize("fragments", [0, -1, 7])
def test_an_impossible_number_of_fragments_is_refused(fragments: int) -> None:
    entries = [Entry(f"w{i}", (2, 2), Kind.PARAMETER, Policy.CODED) for i in range(6)]
    with pytest.raises(ShapeError, match="1 to 6"):
        cut(entries, fragments)


def test_the_layout_says_name_shape_kind_and_policy() -> None:
    entries = [
        Entry("b", (), Kind.BUFFER, Policy.LOSSLESS),
        Entry("a", (2, 3), Kind.PARAMETER, Policy.CODED),
    ]
    assert layout_lines(entries) == ("a 2x3 parameter coded", "b scalar buffer lossless")


def test_the_first_difference_of_two_layouts_is_named() -> None:
    mine = ("a 2x3 parameter coded", "c 4 parameter lossless")
    assert first_difference(mine, mine) is None
    assert "'a 2x3" in first_difference(mine, ("a 2x4 parameter coded", mine[1]))
    assert "'a 2x4" in first_difference(mine, ("a 2x4 parameter coded", mine[1]))
    assert first_difference(mine, mine[:1]) == f"the other island's model lacks '{mine[1]}'"
    assert first_difference(mine[:1], mine) == f"this island's model lacks '{mine[1]}'"
    extra = (mine[0], "b 1 parameter lossless", mine[1])
    assert first_difference(mine, extra) == "this island's model lacks 'b 1 parameter lossless'"
    assert first_difference(extra, mine) == "the other island's model lacks 'b 1 parameter lossless'"
