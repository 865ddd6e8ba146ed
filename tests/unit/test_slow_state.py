"""Slow state: what it takes as fast weights, what it changes, and what it never touches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from headers import header
from isthmus.codec import NO_CODEC
from isthmus.errors import CodecError, ShapeError
from isthmus.session import Cut, cut_model
from isthmus.session.copies import Place, SideStream
from isthmus.session.orders import Arrive, Mode
from isthmus.session.slow import SlowState
from isthmus.terms import Header

PEERS = ("b", "c")


class Net(nn.Module):
    """A tied pair, a frozen layer, a norm, a float buffer, a counter, and a matrix that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(requires_grad=False)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("load", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def slow_of(model: nn.Module, **changes: object) -> SlowState:
    return make_cut(model, **changes).slow


def make_cut(model: nn.Module, **changes: object) -> Cut:
    wanted = {"num_fragments": 2, "peers": PEERS, "embedding_codec": "int4"} | changes
    return cut_model(model, **wanted)


def trade_with_copy(slow: SlowState, fragment: int, codec: str = "fp32", mode: Mode = Mode.CORRECT) -> None:
    """Meet a partner that publishes the same weights moved by one."""
    mine = bytearray(slow.payload_bytes(fragment, codec))
    if slow.side is None:
        slow.encode("b", fragment, codec, memoryview(mine))
    else:
        room = slow.side.room(len(mine))
        slow.encode("b", fragment, codec, room)
        landing = slow.side.down(room, memoryview(mine))
        assert not any(mine)
        landing.finish()
    theirs = bytearray(slow.payload_bytes(fragment, "fp32"))
    numbers = torch.frombuffer(theirs, dtype=torch.float32)
    numbers += 1.0
    own, other = header(fragment, codec, len(mine)), header(fragment, "fp32", len(theirs))
    payloads = [memoryview(mine), memoryview(theirs)]
    near = payloads if slow.side is None else [slow.side.up(payload).take() for payload in payloads]
    slow.arrive(Arrive(("b",), fragment, own, (other,), 0, mode), near)


def move(model: nn.Module, by: float = 0.5) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(by)


@pytest.mark.parametrize("on_host", [False, True], ids=["beside the weights", "on the host"])
def test_copies_on_a_stream_of_their_own_change_nothing_else(on_host: bool):
    models = [Net(), Net()]
    side = SideStream(torch.device("cpu"))
    slows = [slow_of(models[0]), slow_of(models[1], place=Place(on_host, side))]
    assert (slows[1].side is None) == on_host
    for turn, (codec, mode) in enumerate([("int4", Mode.CORRECT), ("int8", Mode.ADOPT), ("fp32", Mode.ASSIGN)]):
        for model, slow in zip(models, slows, strict=True):
            move(model, 0.1 * (turn + 1))
            for fragment in (0, 1):
                slow.depart(fragment, outer_lr=0.7, momentum=0.5)
                trade_with_copy(slow, fragment, codec, mode)
            move(model)
    with slows[0].swapped_in(), slows[1].swapped_in():
        assert_same_weights(*models)
    assert_same_weights(*models)
    assert slows[0].digest() == slows[1].digest()
    slows[1].load_state_dict(slows[0].state_dict())
    slows[0].take_in()
    slows[1].take_in()
    assert_same_weights(*models)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


# -- which tensors -----------------------------------------------------------------------------------------------------


def test_tied_parameters_are_one_and_frozen_ones_and_counters_stay_at_home():
    model = Net()
    names = set(slow_of(model).slow_weights())
    assert names == {"embed.weight", "body.weight", "body.bias", "norm.weight", "norm.bias", "turned", "load"}


def test_frozen_parameters_and_counters_are_never_changed():
    model = Net()
    slow = slow_of(model)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items() if "frozen" in name or name == "count"}
    move(model)
    for fragment in (0, 1):
        slow.depart(fragment, outer_lr=0.7, momentum=0.5)
        trade_with_copy(slow, fragment)
    for name, tensor in kept.items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert model.head.weight is model.embed.weight


def test_a_compiled_model_has_the_names_of_the_plain_one():
    wrapped = nn.Module()
    wrapped._orig_mod = Net()
    assert make_cut(wrapped).layout == make_cut(Net()).layout
    assert set(slow_of(wrapped).slow_weights()) == set(slow_of(Net()).slow_weights())


@pytest.mark.parametrize("act", ["departure", "arrival"])
def test_a_parameter_that_is_not_contiguous_is_changed_in_its_own_memory(act):
    model = Net()
    assert not model.turned.is_contiguous()
    pointer, stride = model.turned.data_ptr(), model.turned.stride()
    slow = slow_of(model)
    (fragment,) = [f.index for f in slow.fragments if any(entry.name == "turned" for entry in f.entries)]
    before = model.turned.detach().clone()
    move(model)
    slow.depart(fragment, outer_lr=0.5, momentum=0.0)
    expected = before + 0.25
    if act == "arrival":
        trade_with_copy(slow, fragment)
        expected = before + (0.25 + 1.0) / 2
    assert torch.allclose(model.turned, expected)
    assert torch.allclose(slow.slow_weights()["turned"], expected)
    assert (model.turned.data_ptr(), model.turned.stride()) == (pointer, stride)


def test_buffers_are_averaged_without_an_outer_step():
    model = Net()
    slow = slow_of(model)
    (fragment,) = [f.index for f in slow.fragments if any(entry.name == "load" for entry in f.entries)]
    model.load += 8.0
    slow.depart(fragment, outer_lr=0.1, momentum=0.9)
    assert torch.equal(slow.slow_weights()["load"], torch.full((4,), 8.0))
    trade_with_copy(slow, fragment)
    assert torch.equal(model.load, torch.full((4,), 4.5))


# -- low precision -----------------------------------------------------------------------------------------------------


def low_precision() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = Net().to(torch.bfloat16)
    trained = {name: p.detach().float().clone() for name, p in model.named_parameters() if p.requires_grad}
    return model, trained | {"load": model.load.float()}


def test_bf16_parameters_without_masters_are_refused_with_the_reason():
    model, _ = low_precision()
    with pytest.raises(ShapeError, match=r"'.*' cannot be mixed.*would be rounded away.*masters") as caught:
        slow_of(model)
    assert caught.value.got == torch.bfloat16


def test_a_master_that_is_no_fp32_is_refused():
    model, masters = low_precision()
    with pytest.raises(ShapeError, match=r"body\.weight"):
        slow_of(model, masters=masters | {"body.weight": masters["body.weight"].double()})


def test_bf16_parameters_follow_their_fp32_masters_after_departures_and_arrivals():
    model, masters = low_precision()
    slow = slow_of(model, masters=masters)
    for tensor in masters.values():
        tensor.add_(0.3)
    for fragment in (0, 1):
        slow.depart(fragment, outer_lr=0.7, momentum=0.5)
        assert_mirrored(model, masters, slow, fragment)
        trade_with_copy(slow, fragment, "int4")
        assert_mirrored(model, masters, slow, fragment)


def assert_mirrored(model: nn.Module, masters: dict[str, torch.Tensor], slow: SlowState, fragment: int) -> None:
    own = model.state_dict()
    for entry in slow.fragments[fragment].entries:
        assert torch.equal(own[entry.name], masters[entry.name].bfloat16()), entry.name
        assert not torch.equal(own[entry.name].float(), masters[entry.name]), entry.name


def test_fp32_masters_come_back_from_a_checkpoint():
    model, masters = low_precision()
    slow = slow_of(model, masters=masters)
    for tensor in masters.values():
        tensor.add_(torch.rand(tensor.shape))
    kept = {name: tensor.clone() for name, tensor in masters.items()}
    state = slow.state_dict()
    again, fresh = low_precision()
    restored = slow_of(again, masters=fresh)
    restored.load_state_dict(state)
    for name, tensor in kept.items():
        assert torch.equal(fresh[name], tensor)
        assert torch.equal(again.state_dict()[name], tensor.bfloat16())


# -- swapping ----------------------------------------------------------------------------------------------------------


def test_swapping_in_holds_the_slow_weights_and_brings_the_fast_ones_back_even_after_an_error():
    model = Net()
    slow = slow_of(model)
    move(model)
    slow.depart(0, outer_lr=0.5, momentum=0.0)
    move(model, 0.123)
    fast = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def evaluate() -> None:
        with slow.swapped_in():
            for name, tensor in slow.slow_weights().items():
                assert torch.equal(model.state_dict()[name], tensor)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    for name, tensor in fast.items():
        assert torch.equal(model.state_dict()[name], tensor), name


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda head, payload: (header(0, "fp32", 0, weight_tokens=-1), payload), "weight is impossible"),
        (lambda head, payload: (header(0, "fp32", 0, weight_tokens=41), payload), "weight is impossible"),
        (lambda head, payload: (header(0, NO_CODEC, 0, weight_tokens=1), b""), "weight is impossible"),
        (lambda head, payload: (head, payload[:-1]), "wrong length"),
        (lambda head, payload: (header(0, "zip", 0), payload), "no such codec"),
        (lambda head, payload: (head, b"\xff" * len(payload)), "finite"),
    ],
)
def test_a_publication_that_cannot_be_right_is_refused(
    spoil: Callable[[Header, bytes], tuple[Header, bytes]], what: str
):
    slow = slow_of(Net())
    payload = bytearray(slow.payload_bytes(0, "fp32"))
    slow.encode("b", 0, "fp32", memoryview(payload))
    good = header(0, "fp32", len(payload))
    slow.check(good, memoryview(payload))
    bad, bytes_ = spoil(good, bytes(payload))
    with pytest.raises(CodecError, match=what):
        slow.check(bad, memoryview(bytes_))


def test_a_fragment_with_a_weight_that_is_not_finite_is_told_apart():
    model = Net()
    slow = slow_of(model)
    assert slow.is_finite(0) and slow.is_finite(1)
    with torch.no_grad():
        model.turned[2, 1] = float("inf")
    (fragment,) = [f.index for f in slow.fragments if any(entry.name == "turned" for entry in f.entries)]
    assert not slow.is_finite(fragment)
    assert slow.is_finite(1 - fragment)


# -- saving ------------------------------------------------------------------------------------------------------------


def test_a_state_goes_round_through_load_bit_for_bit():
    model = Net()
    slow = slow_of(model)
    for fragment in (0, 1, 0):
        move(model)
        slow.depart(fragment, outer_lr=0.7, momentum=0.5)
        trade_with_copy(slow, fragment)
    slow.clear("c", 1)
    again = slow_of(Net())
    again.load_state_dict(slow.state_dict())
    assert again.digest() == slow.digest()
    for peer in PEERS:
        for fragment in (0, 1):
            assert again.reference_hash(peer, fragment) == slow.reference_hash(peer, fragment)
            assert again.has_reference(peer, fragment) == slow.has_reference(peer, fragment)
    velocity, wanted = again.state_dict()["velocity"], slow.state_dict()["velocity"]
    assert all(torch.equal(velocity[name], tensor) for name, tensor in wanted.items())


def test_what_was_loaded_is_the_states_own_no_longer():
    slow, again = slow_of(Net()), slow_of(Net())
    state = slow.state_dict()
    again.load_state_dict(state)
    before = again.digest()
    for tensor in state["slow"].values():
        tensor.add_(1)
    assert again.digest() == before


def test_an_island_that_joins_the_roster_later_is_met_from_the_initial_weights():
    first = slow_of(Net(), peers=("b",))
    trade_with_copy(first, 0)
    trade_with_copy(first, 1)
    later = slow_of(Net(), peers=PEERS)
    later.load_state_dict(first.state_dict())
    assert later.reference_hash("b", 0) == first.reference_hash("b", 0)
    assert [later.reference_hash("c", fragment) for fragment in (0, 1)] == list(later.initial_hashes)


def test_a_state_of_another_model_is_refused_by_the_first_name_that_differs():
    other = Net()
    other.body = nn.Linear(4, 3)
    with pytest.raises(ShapeError, match=r"another model.*'body\.bias'"):
        slow_of(Net()).load_state_dict(slow_of(other).state_dict())


def test_memory_for_references_is_one_per_peer_and_fragment_however_many_meetings():
    model = Net()
    slow = slow_of(model, peers=("b",))
    for _ in range(50):
        move(model, 0.01)
        for fragment in (0, 1):
            slow.depart(fragment, outer_lr=0.7, momentum=0.5)
            trade_with_copy(slow, fragment)
    state = slow.state_dict()
    assert set(state["references"]) == {("b", 0), ("b", 1)}
    assert not state["initial"]


def test_adoption_takes_the_merged_weights_whole_and_forgets_the_velocity():
    model = Net()
    slow = slow_of(model)
    move(model)
    slow.depart(0, outer_lr=0.7, momentum=0.5)
    trade_with_copy(slow, 0, mode=Mode.ADOPT)
    reference = slow.state_dict()["references"]["b", 0]
    for entry in slow.fragments[0].entries:
        assert torch.equal(slow.slow_weights()[entry.name], reference[entry.name])
        assert torch.equal(model.state_dict()[entry.name], reference[entry.name])
    velocity = slow.state_dict()["velocity"]
    assert not any(velocity[entry.name].any() for entry in slow.fragments[0].entries if entry.name in velocity)


# -- meetings of all ---------------------------------------------------------------------------------------------------


def meet_all(slows: list[SlowState], fragment: int, codecs: list[str], tokens: list[int]) -> list[bytes]:
    """Islands a, b, c, ... publish to each other and apply the meeting; one with no codec adopts it."""
    names, payloads, headers = "abcd"[: len(slows)], [], []
    for place, (slow, codec, own) in enumerate(zip(slows, codecs, tokens, strict=True)):
        payloads.append(memoryview(bytearray(slow.payload_bytes(fragment, codec))))
        if codec != NO_CODEC:
            slow.encode("ba"[place == 1], fragment, codec, payloads[-1])
        headers.append(header(fragment, codec, payloads[-1].nbytes, sender=names[place], tokens=own, weight_tokens=own))
    hashes = []
    for place, slow in enumerate(slows):
        mode = Mode.ADOPT if codecs[place] == NO_CODEC else Mode.CORRECT
        peers = tuple(name for name in names if name != names[place])
        theirs = tuple(other for other in headers if other is not headers[place])
        hashes.append(slow.arrive(Arrive(peers, fragment, headers[place], theirs, place, mode), payloads))
    return hashes


def three(codecs: list[str]) -> tuple[list[nn.Module], list[SlowState]]:
    """Three islands that have departed from different places."""
    models = [Net() for _ in codecs]
    slows = [slow_of(model, peers=tuple({*"abc"} - {name})) for model, name in zip(models, "abc", strict=True)]
    for index, (model, slow) in enumerate(zip(models, slows, strict=True)):
        torch.manual_seed(index)
        with torch.no_grad():
            for tensor in slow.slow_weights():
                model.state_dict()[tensor].add_(torch.randn(model.state_dict()[tensor].shape))
        for fragment in (0, 1):
            slow.depart(fragment, outer_lr=0.7, momentum=0.5)
    return models, slows


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
def test_all_come_to_the_same_reference_and_their_weighted_corrections_cancel(codec: str):
    models, slows = three([codec] * 3)
    tokens = [3, 1, 9]
    for fragment in (0, 1):
        before = [{name: tensor.clone() for name, tensor in slow.slow_weights().items()} for slow in slows]
        hashes = meet_all(slows, fragment, [codec] * 3, tokens)
        assert len(set(hashes)) == 1
        for name in (entry.name for entry in slows[0].fragments[fragment].entries):
            corrections = [slow.slow_weights()[name] - old[name] for slow, old in zip(slows, before, strict=True)]
            weighted = sum(each.double() * own / 13 for each, own in zip(corrections, tokens, strict=True))
            assert weighted.abs().max() < 3e-6
            assert any(each.any() for each in corrections)
    for model, slow in zip(models, slows, strict=True):
        for peer in {*"abc"} - {"abc"[slows.index(slow)]}:
            assert slow.reference_hash(peer, 0) == slows[0].reference_hash("b", 0)
        for name, tensor in slow.slow_weights().items():
            assert torch.allclose(model.state_dict()[name], tensor, atol=1e-6)


def test_a_meeting_of_all_without_loss_leaves_all_with_the_weighted_mean():
    _, slows = three(["fp32"] * 3)
    before = [slow.slow_weights()["body.weight"].clone() for slow in slows]
    for fragment in (0, 1):
        meet_all(slows, fragment, ["fp32"] * 3, [2, 1, 1])
    mean = 0.5 * before[0] + 0.25 * before[1] + 0.25 * before[2]
    for slow in slows:
        assert torch.allclose(slow.slow_weights()["body.weight"], mean, atol=1e-6)


def test_a_newcomer_adopts_what_the_others_of_a_meeting_of_all_come_to():
    models, slows = three(["fp32"] * 3)
    for fragment in (0, 1):
        hashes = meet_all(slows, fragment, ["fp32", NO_CODEC, "fp32"], [1, 0, 3])
        assert len(set(hashes)) == 1
    reference = slows[0].state_dict()["references"]
    for fragment in slows[1].fragments:
        for entry in fragment.entries:
            agreed = reference["b" if ("b", fragment.index) in reference else "c", fragment.index][entry.name]
            assert torch.equal(slows[1].slow_weights()[entry.name], agreed)
            assert torch.equal(models[1].state_dict()[entry.name], agreed)
