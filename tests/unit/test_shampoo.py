"""What Shampoo promises as a torch optimizer: stacks and blocks, idle experts, bad numbers, saved state, bad input."""

from __future__ import annotations

import copy
import io
import json
import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, load, save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from isthmus.errors import ConfigError, ShapeError
from isthmus.optim import Shampoo, shampoo_groups
from isthmus.optim.blocks import VARIANTS
from isthmus.optim.owners import box_of, divide
from isthmus.optim.refreshes import Refresh, plan_refreshes, plan_share
from isthmus.optim.rounds import plan_rounds
from isthmus.optim.tiles import Stack, cut, stack_up
from isthmus.parts import Part, rows_part


def parameter(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype))


def drive(optimizer: Shampoo, steps: int, *, first: int = 0, scale: float = 1.0) -> None:
    """Steps with gradients that depend on the step, the parameter's place and its shape alone."""
    for step in range(first, first + steps):
        for place, each in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            generator = torch.Generator().manual_seed(1000 * step + place)
            each.grad = (scale * torch.randn(each.shape, generator=generator)).to(each.dtype)
        optimizer.step()


def same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(one, two, strict=True))


# -- stacks and blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_experts_in_a_stack_are_matrices_by_themselves(variant: str) -> None:
    stack = parameter(3, 6, 4)
    alone = [nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    together = Shampoo([stack], variant=variant, refresh_steps=1)
    apart = [Shampoo([matrix], variant=variant, refresh_steps=1) for matrix in alone]
    for step in range(8):
        stack.grad = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(step))
        together.step()
        for matrix, gradient, optimizer in zip(alone, stack.grad, apart, strict=True):
            matrix.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(stack.detach(), torch.stack([matrix.detach() for matrix in alone]), rtol=1e-4, atol=1e-5)


def test_blocks_of_a_large_matrix_are_matrices_by_themselves() -> None:
    def parts(tensor: Tensor) -> list[Tensor]:
        return [part for rows in tensor.split([2, 2, 3]) for part in rows.split([2, 3], 1)]

    whole = parameter(7, 5)
    apart = [nn.Parameter(part.clone()) for part in parts(whole.detach())]
    one, many = Shampoo([whole], max_block=3, refresh_steps=1), Shampoo(apart, refresh_steps=1)
    for step in range(8):
        whole.grad = torch.randn(7, 5, generator=torch.Generator().manual_seed(step))
        for part, gradient in zip(apart, parts(whole.grad), strict=True):
            part.grad = gradient.clone()
        one.step()
        many.step()
    for one_part, part in zip(parts(whole), apart, strict=True):
        torch.testing.assert_close(one_part, part, rtol=1e-4, atol=1e-5)


def test_an_idle_expert_changes_in_nothing_and_loses_nothing() -> None:
    stack = parameter(3, 6, 4)
    optimizer = Shampoo([stack], lr=0.1, refresh_steps=2)
    for step in range(90):
        stack.grad = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(step))
        if not 4 <= step < 84:
            optimizer.step()
            continue
        stack.grad[1] = 0
        before = stack.detach().clone()
        held = {name: tensor.clone() for name, tensor in optimizer.state[stack].items()}
        optimizer.step()
        assert before[1].equal(stack[1])
        assert not before[0].equal(stack[0])
        changed = {name for name, tensor in optimizer.state[stack].items() if not held[name][1].equal(tensor[1])}
        assert step < 6 or not changed, "what the steps before left to its bases is done in the first turn"
    assert [int(count) for count in optimizer.state[stack]["step"]] == [90, 10, 90]


def test_many_stacks_and_tiles_are_as_good_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[list[nn.Parameter], int]:
        own = [parameter(5, 6, 4), parameter(6, 4, seed=1), parameter(9, 4, seed=2)]
        optimizer = Shampoo(own, lr=0.1, refresh_steps=1, max_block=6)
        drive(optimizer, 6)
        return own, sum(len(layout.stacks) for layout in optimizer._layouts)

    few, count = trained()
    monkeypatch.setattr("isthmus.optim.tiles.MOST_ELEMENTS", 48)
    monkeypatch.setattr("isthmus.optim.blocks.PIECE", 24)
    many, larger = trained()
    assert larger > count
    for one, two in zip(few, many, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_one_expert_with_huge_gradients_leaves_the_others_alone() -> None:
    stack, alone = parameter(2, 6, 4), parameter(2, 6, 4)
    pair = [Shampoo([each], lr=0.1, refresh_steps=2) for each in (stack, alone)]
    for step in range(6):
        stack.grad = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(step)) * 1e-6
        alone.grad = stack.grad.clone()
        stack.grad[0] *= 1e30
        for optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(stack[1], alone[1], rtol=1e-4, atol=1e-5)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    trained, alone, vector = parameter(4, 4), parameter(4, 4, seed=1), parameter(4)
    before = [alone.detach().clone(), vector.detach().clone()]
    optimizer = Shampoo([trained, alone, vector], lr=0.1)
    for _ in range(3):
        trained.grad = torch.ones(4, 4)
        optimizer.step()
    assert same(before, [alone, vector])
    assert not trained.equal(parameter(4, 4))


def test_a_group_added_later_is_trained_too_and_the_others_go_on() -> None:
    first, twin, late = parameter(4, 4), parameter(4, 4), parameter(5, 4, seed=1)
    one, two = Shampoo([first], refresh_steps=1), Shampoo([twin], refresh_steps=1)
    drive(one, 3)
    drive(two, 3)
    one.add_param_group({"params": [late], "lr": 0.5})
    drive(one, 3, first=3)
    drive(two, 3, first=3)
    assert first.equal(twin)
    assert (late - parameter(5, 4, seed=1)).abs().max() > 0.4


def test_rates_decay_and_a_closure_work_as_in_any_torch_optimizer() -> None:
    weight = parameter(4, 4)
    optimizer = Shampoo([weight], lr=0.1, weight_decay=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    before = weight.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) == pytest.approx(float(before.square().sum()))
    after = weight.detach().clone()
    assert not before.equal(after)
    scheduler.step()
    optimizer.step(closure)
    assert after.equal(weight), "a rate of 0 moves nothing, decay included"


# -- bad numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "kind", ["zero", "tiny", "huge", "rank one", "tiny after huge", "huge after tiny", "once 1e30", "ones"]
)
def test_weights_and_state_stay_finite(kind: str, variant: str, dtype: torch.dtype) -> None:
    shapes = [(6, 4), (1, 5), (5, 1), (1, 1), (2, 3, 4), (7,)]
    own = [parameter(*shape, dtype=dtype) for shape in shapes]
    optimizer = Shampoo(own, lr=0.1, variant=variant, refresh_steps=2)
    for step in range(7):
        for each in own:
            noise = torch.randn(each.shape, generator=torch.Generator().manual_seed(step))
            values = {
                "zero": noise * 0,
                "tiny": noise * 1e-20,
                "huge": noise * 1e20,
                "tiny after huge": noise * (1e20 if step < 3 else 1e-20),
                "huge after tiny": noise * (1e20 if step > 3 else 1e-20),
                "once 1e30": noise * (1e30 if step == 1 else 1.0),
                "rank one": torch.ones_like(noise) * noise[..., :1],
                "ones": torch.ones_like(noise),
            }
            each.grad = values[kind].to(dtype)
        before = [each.detach().clone() for each in own]
        optimizer.step()
        assert all(each.isfinite().all() for each in own)
        assert all(tensor.isfinite().all() for state in optimizer.state.values() for tensor in state.values())
        assert all((each - old).abs().max() < 0.7 for each, old in zip(own, before, strict=True)), "no leap"
        assert kind != "zero" or all(each.equal(old) for each, old in zip(own[:-1], before[:-1], strict=True))
    assert kind in ("zero", "tiny") or all(not each.equal(parameter(*each.shape, dtype=dtype)) for each in own)


def test_a_gradient_that_is_not_a_number_is_seen_in_the_weights_and_ends_nothing() -> None:
    weight = parameter(4, 4)
    optimizer = Shampoo([weight], refresh_steps=1)
    drive(optimizer, 2)
    weight.grad = torch.full((4, 4), torch.nan)
    optimizer.step()
    drive(optimizer, 3)
    assert weight.isnan().all()


def laid_out(tensor: Tensor, way: str) -> Tensor:
    """The same values, in another order in memory."""
    if way == "transposed":
        return tensor.t().contiguous().t()
    if way == "strided":
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor


@pytest.mark.parametrize("matrices", [True, False])
@pytest.mark.parametrize("of_weight", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("of_gradient", ["plain", "transposed", "strided"])
def test_how_tensors_lie_in_memory_does_not_matter(of_gradient: str, of_weight: str, matrices: bool) -> None:
    weight, twin = nn.Parameter(laid_out(parameter(6, 4).detach(), of_weight)), parameter(6, 4)
    pair = [Shampoo([{"params": [each], "matrices": matrices}], lr=0.1, refresh_steps=1) for each in (weight, twin)]
    for step in range(3):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        weight.grad, twin.grad = laid_out(gradient, of_gradient), gradient
        for optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(weight, twin, rtol=1e-5, atol=1e-6)
    vector, gradient = nn.Parameter(torch.zeros(50)), torch.ones(1).expand(50)
    vector.grad = gradient
    Shampoo([vector], lr=0.1).step()
    torch.testing.assert_close(vector.detach(), torch.full((50,), -0.1))


@pytest.mark.parametrize("matrices", [True, False])
def test_small_changes_of_double_weights_are_not_rounded_away(matrices: bool) -> None:
    weight = nn.Parameter(torch.full((3, 3), 1 + 1e-12, dtype=torch.float64))
    optimizer = Shampoo([{"params": [weight], "matrices": matrices}], lr=1e-10, weight_decay=0.0)
    for _ in range(10):
        weight.grad = torch.ones(3, 3, dtype=torch.float64)
        optimizer.step()
    assert 0 < 1 + 1e-12 - float(weight.detach()[0, 0]) < 1e-8


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_under_autocast_is_the_same_step(variant: str) -> None:
    weight, twin = parameter(6, 4), parameter(6, 4)
    one, two = Shampoo([weight], variant=variant, refresh_steps=1), Shampoo([twin], variant=variant, refresh_steps=1)
    drive(one, 4)
    with torch.autocast("cpu", torch.bfloat16):
        drive(two, 4)
    assert weight.equal(twin)


@pytest.mark.parametrize("backend", [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul])
def test_bases_stay_orthonormal_where_products_may_be_less_precise(backend) -> None:
    before = backend.fp32_precision
    weight = parameter(64, 64)
    optimizer = Shampoo([weight], refresh_steps=1)
    backend.fp32_precision = "tf32" if backend is torch.backends.cuda.matmul else "bf16"
    allowed = backend.fp32_precision
    try:
        drive(optimizer, 4)
        assert backend.fp32_precision == allowed
    finally:
        backend.fp32_precision = before
    basis = optimizer.state[weight]["left_basis"][0]
    torch.testing.assert_close(basis.T @ basis, torch.eye(64), rtol=0, atol=5e-6)


def test_rounding_does_not_add_up_over_refreshes() -> None:
    weight = parameter(48, 48)
    optimizer = Shampoo([weight], refresh_steps=1)
    worst = []
    for _ in range(40):
        drive(optimizer, 5)
        basis = optimizer.state[weight]["left_basis"][0]
        worst.append(float((basis.T @ basis - torch.eye(48)).abs().max()))
    assert max(worst[20:]) < 5e-6
    assert max(worst[20:]) < 2 * max(worst[:20])


# -- saved state -------------------------------------------------------------------------------------------------------

MIXED = [(6, 4), (3, 6, 4), (9, 4), (5,)]


def mixed(dtype: torch.dtype = torch.float32, **settings: object) -> tuple[list[nn.Parameter], Shampoo]:
    own = [parameter(*shape, seed=place, dtype=dtype) for place, shape in enumerate(MIXED)]
    return own, Shampoo(own, **{"lr": 0.05, "refresh_steps": 3, "max_block": 6, **settings})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("after", range(5))
def test_a_stopped_run_goes_on_bit_for_bit(after: int, variant: str, dtype: torch.dtype) -> None:
    own, optimizer = mixed(dtype, variant=variant)
    drive(optimizer, after)
    file = io.BytesIO()
    torch.save({"weights": own, "optimizer": optimizer.state_dict()}, file)
    drive(optimizer, 5, first=after)
    file.seek(0)
    stored = torch.load(file, weights_only=True)
    again, resumed = mixed(dtype, variant=variant)
    drive(resumed, 2)  # whatever it has done before
    with torch.no_grad():
        for each, weight in zip(again, stored["weights"], strict=True):
            each.copy_(weight)
    resumed.load_state_dict(stored["optimizer"])
    drive(resumed, 5, first=after)
    assert same(own, again)
    assert all(
        same([*optimizer.state[a].values()], [*resumed.state[b].values()]) for a, b in zip(own, again, strict=True)
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_distributed_checkpoint_saves_and_loads_it(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, Shampoo]:
        model = nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 9))
        with torch.no_grad():
            for place, each in enumerate(model.parameters()):
                each.copy_(parameter(*each.shape, seed=place))
        return model, Shampoo(model.parameters(), refresh_steps=2, max_block=5)

    model, optimizer = make()
    drive(optimizer, 5)
    save(
        {"optimizer": get_optimizer_state_dict(model, optimizer)},
        storage_writer=FileSystemWriter(tmp_path),
        no_dist=True,
    )
    weights = copy.deepcopy(model.state_dict())
    drive(optimizer, 4, first=5)

    other, resumed = make()
    other.load_state_dict(weights)
    stored = {"optimizer": get_optimizer_state_dict(other, resumed)}
    load(stored, storage_reader=FileSystemReader(tmp_path), no_dist=True)
    set_optimizer_state_dict(other, resumed, stored["optimizer"])
    assert same([*other.parameters()], [*weights.values()]), "its first step, which only makes state, moves nothing"
    drive(resumed, 4, first=5)
    assert same([*model.parameters()], [*other.parameters()])


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_is_an_optimizer_of_its_own(way) -> None:
    own, optimizer = mixed()
    drive(optimizer, 4)
    copied, twin = way((own, optimizer))
    before = [each.detach().clone() for each in own]
    drive(twin, 4, first=4)
    assert same(own, before)
    drive(optimizer, 4, first=4)
    assert same(own, copied)


def test_state_of_another_block_size_is_refused_and_says_how_to_mend_it() -> None:
    _, optimizer = mixed()
    drive(optimizer, 1)
    _, other = mixed(max_block=3, lr=0.25)
    drive(other, 2)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ShapeError, match="same max_block"):
        other.load_state_dict(optimizer.state_dict())
    _, third = mixed(variant="kl-shampoo")
    with pytest.raises(ConfigError, match="another variant"):
        third.load_state_dict(optimizer.state_dict())
    after = other.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(same([*after["state"][key].values()], [*own.values()]) for key, own in before["state"].items())


def test_a_parameter_that_never_had_a_gradient_can_share_stacks_and_be_saved() -> None:
    def make() -> tuple[list[nn.Parameter], Shampoo]:
        own = [parameter(9, 4), parameter(4, 4, seed=1)]
        return own, Shampoo(own, max_block=6, refresh_steps=2)

    own, optimizer = make()
    for step in range(3):
        own[1].grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    assert "step.1" not in optimizer.state[own[0]] or "step" not in optimizer.state[own[0]], "a part alone was begun"
    again, resumed = make()
    resumed.load_state_dict(optimizer.state_dict())
    copied, twin = copy.deepcopy((own, optimizer))
    with torch.no_grad():
        again[1].copy_(own[1])
    for pair in (optimizer, resumed, twin):
        drive(pair, 4)
    assert same(own[1:], again[1:])
    assert same(own, copied)


def test_hooks_of_loading_see_and_may_change_the_whole_state() -> None:
    own, optimizer = mixed()
    drive(optimizer, 2)
    again, other = mixed()
    seen: list[float] = []

    def double(_: torch.optim.Optimizer, state: dict) -> dict:
        state = copy.deepcopy(state)
        state["state"][0]["exp_avg"].mul_(2)
        return state

    other.register_load_state_dict_pre_hook(double)
    other.register_load_state_dict_post_hook(lambda each: seen.append(float(each.state[again[0]]["step"])))
    other.load_state_dict(optimizer.state_dict())
    assert seen == [2.0]
    assert other.state[again[0]]["exp_avg"].equal(2 * optimizer.state[own[0]]["exp_avg"])


def test_state_takes_the_bytes_that_the_docs_say() -> None:
    square, optimizer = parameter(3, 8, 8), None
    optimizer = Shampoo([square])
    drive(optimizer, 1)
    tensors = [tensor for name, tensor in optimizer.state[square].items() if name not in ("step", "rotated")]
    assert sum(tensor.nbytes for tensor in tensors) == 24 * square.numel()


# -- turns and owners --------------------------------------------------------------------------------------------------


SHAPES = [torch.Size(shape) for shape in ((96, 32, 16), (40, 48), (8, 8), (64, 8, 8), (1, 7), (2, 30, 20))]


def blocks_of(stacks: Sequence[Stack], turns: Sequence[Sequence[Refresh]]) -> dict[tuple[int, int, int], int]:
    """The turn of every block: parameter, tile and matrix."""
    found = {}
    for turn, refreshes in enumerate(turns):
        for refresh in refreshes:
            places = [
                (tile.parameter, tile.index, matrix)
                for tile in stacks[refresh.stack].tiles
                for matrix in range(tile.matrices.start, tile.matrices.stop)
            ]
            for place in places[refresh.part]:
                assert place not in found
                found[place] = turn
    return found


@pytest.mark.parametrize("every", [1, 4, 20])
def test_every_block_has_one_turn_and_no_step_carries_more_than_its_share(every: int) -> None:
    stacks = stack_up(cut(SHAPES, 24), [torch.device("cpu")] * len(SHAPES))
    turns = plan_refreshes(stacks, every=every)
    assert len(turns) == every
    assert len(blocks_of(stacks, turns)) == sum(stack.blocks for stack in stacks)
    costs = [stack.shape[1] ** 3 + stack.shape[2] ** 3 for stack in stacks]
    total = sum(cost * stack.blocks for cost, stack in zip(costs, stacks, strict=True))
    for refreshes in turns:
        load = sum(costs[each.stack] * (each.part.stop - each.part.start) for each in refreshes)
        assert load <= total / every + max(costs)


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_owners_divide_all_blocks_evenly_and_refresh_them_in_the_turns_of_one_process(ranks: int) -> None:
    tiles, devices = [*cut(SHAPES, 24)], [torch.device("cpu")] * len(SHAPES)
    whole = stack_up(tiles, devices)
    wanted = blocks_of(whole, plan_refreshes(whole, every=5))
    owned = divide(tiles, [shape[0] if len(shape) == 3 else 1 for shape in SHAPES], [0] * ranks)
    found: dict[tuple[int, int, int], int] = {}
    for own in owned:
        stacks = stack_up(own, devices)
        mine = blocks_of(stacks, plan_share([stacks], [whole], every=5))
        assert not found.keys() & mine.keys()
        found |= mine
    assert found == wanted
    loads = [sum(tile.count * sum(side**2 for side in tile.shape) for tile in own) for own in owned]
    assert max(loads) <= 1.4 * sum(loads) / ranks


class Slices:
    """Collectives of a rank that holds its slice of the rows of every parameter; nothing is sent."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks

    def part_of(self, tensor: Tensor) -> Part:
        most = -(-tensor.shape[0] // self.num_ranks)
        return rows_part(tensor[self.rank * most : (self.rank + 1) * most], first=self.rank * most, of=len(tensor))

    def collect(self, own: bytes) -> list[bytes]:
        others = [Slices(rank, self.num_ranks) for rank in range(self.num_ranks)]
        return [own if each.rank == self.rank else told_by(each) for each in others]


def told_by(collectives: Slices) -> bytes:
    """What a rank of ``dense`` says it holds."""
    boxes = {place: box_of(collectives.part_of(each)) for place, each in enumerate(dense())}
    return json.dumps({place: box.sides for place, box in boxes.items() if box}).encode()


def dense() -> list[Tensor]:
    """The matrices of a dense decoder of 1.2 billion parameters, without memory."""
    layer = [(2048, 2048)] * 4 + [(5632, 2048)] * 2 + [(2048, 5632)]
    return [torch.empty(shape, device="meta") for shape in layer * 24]


@pytest.mark.parametrize(("ranks", "least"), [(2, 1.85), (8, 7.0)])
def test_rounds_keep_all_ranks_at_work(ranks: int, least: float) -> None:
    tiles = [*cut([each.shape for each in dense()], 2048)]
    works = []
    for rank in range(ranks):
        rounds = plan_rounds(dense(), tiles, Slices(rank, ranks), [0] * ranks)
        works.append([sum(map(work, each.stacks)) for each in rounds])
    slowest = sum(map(max, zip(*works, strict=True)))
    assert sum(map(sum, works)) / slowest > least


def work(stack: Stack) -> int:
    _, rows, columns = stack.shape
    return stack.blocks * (rows**3 + columns**3 + 4 * rows * columns * (rows + columns))


class Threads:
    """Collectives of threads of this process, each of which holds all weights, or its slice of one dimension."""

    def __init__(self, rank: int, barrier: threading.Barrier, board: dict[int, object], sliced: int | None) -> None:
        self.rank, self.num_ranks = rank, barrier.parties
        self._barrier, self._board, self._sliced = barrier, board, sliced
        self.received = 0

    def part_of(self, tensor: Tensor) -> Part:
        if self._sliced is None or tensor.ndim <= self._sliced:
            return Part.whole(tensor.detach())
        offsets = [0] * tensor.ndim
        length, tensor = tensor.shape[self._sliced], tensor.detach()
        most = -(-length // self.num_ranks)
        offsets[self._sliced] = first = min(length, self.rank * most)
        local = tensor.narrow(self._sliced, first, min(most, length - first))
        return Part(tuple(tensor.shape), tuple(offsets), local)

    def local(self, tensor: Tensor) -> Tensor:
        return self.part_of(tensor).local

    def collect(self, own: bytes) -> list[bytes]:
        return self._all(own)

    def exchange(self, sent: Tensor, sizes: Sequence[int], arriving: Sequence[int]) -> Tensor:
        pieces = [each[self.rank] for each in self._all(sent.split([*sizes]))]
        assert [len(piece) for piece in pieces] == [*arriving]
        self.received += sum(arriving)
        return torch.cat(pieces)

    def _all(self, own: Any) -> list[Any]:
        self._board[self.rank] = own
        self._barrier.wait(timeout=60)
        found = [self._board[rank] for rank in range(self.num_ranks)]
        self._barrier.wait(timeout=60)
        return found


def at_all(work: Callable[[int], None], ranks: int) -> None:
    """Do something in a thread for each rank."""
    failed: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failed, failed


def spread(ranks: int, sliced: int | None, **settings: object) -> tuple[list[Threads], list[Any]]:
    barrier, board = threading.Barrier(ranks), {}
    team = [Threads(rank, barrier, board, sliced) for rank in range(ranks)]
    return team, [mixed(collectives=each, weight_decay=0.2, **settings) for each in team]


def close(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, two, strict=True))


def whole_state(team: Sequence[Threads], optimizers: Sequence[Shampoo]) -> dict[str, Any]:
    """What the ranks' parts of a state make up."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    whole = {number: {} for number in states[0]["state"]}
    for number, tensors in whole.items():
        for name, like in states[0]["state"][number].items():
            made = torch.full(like.shape, torch.nan)
            for state in states:
                part = state["state"][number][name]
                if not part.is_empty:
                    made[part.box] = part.local
            assert not made.isnan().any(), "all of it is somebody's"
            tensors[name] = made
    return {**states[0], "state": whole}


@pytest.mark.parametrize("variant", ["soap", "kl-shampoo"])
@pytest.mark.parametrize("sliced", [None, 0, 1, 2])
@pytest.mark.parametrize("ranks", [2, 5])
def test_the_numbers_do_not_depend_on_ranks_or_on_how_they_hold_the_weights(
    ranks: int, sliced: int | None, variant: str
) -> None:
    own, alone = mixed(weight_decay=0.2, variant=variant)
    drive(alone, 10)
    team, pairs = spread(ranks, sliced, variant=variant)
    at_all(lambda rank: drive(pairs[rank][1], 10), ranks)
    for each, (weights, _) in zip(team, pairs, strict=True):
        assert close([each.local(p) for p in own], [each.local(p) for p in weights])
    kept = whole_state(team, [optimizer for _, optimizer in pairs])
    for number, tensors in alone.state_dict()["state"].items():
        assert kept["state"][number].keys() == tensors.keys()
        for name, tensor in tensors.items():
            if "factor" in name:  # only the lower triangle counts
                assert close([tensor.tril()], [kept["state"][number][name].tril()])
            elif "step" in name or "rotated" in name:
                assert torch.equal(tensor, kept["state"][number][name])
    numels = [
        sum(tensor.numel() for parameter in optimizer.state.values() for tensor in parameter.values())
        for _, optimizer in pairs
    ]
    assert sum(numels) < 1.5 * sum(t.numel() for each in alone.state.values() for t in each.values())
    assert all(each.received > 0 for each in team)


def test_ranks_begin_what_one_process_had_not_begun() -> None:
    own, alone = mixed()
    for each in own[:1]:
        each.grad = torch.ones_like(each)
    alone.step()
    stored = alone.state_dict()
    _, pairs = spread(3, None)

    def go_on(rank: int) -> None:
        optimizer = pairs[rank][1]
        optimizer.load_state_dict(stored)
        optimizer.load_state_dict(optimizer.state_dict())
        drive(optimizer, 2)

    at_all(go_on, 3)


def test_groups_share_the_ranks_out_between_them() -> None:
    tiles = [[*cut([torch.Size((32, 32))], 64)] for _ in range(8)]
    loads = [0] * 4
    for each in tiles:
        divide(each, [1], loads)
    assert len(set(loads)) == 1


def test_copies_of_ranks_optimizers_go_on_alike_and_late_groups_begin_late() -> None:
    team, pairs = spread(3, 0)

    def copied(rank: int) -> None:
        weights, optimizer = pairs[rank]
        drive(optimizer, 4)
        twin, again = copy.deepcopy((weights, optimizer), {id(team[rank]): team[rank]})
        for each in (optimizer, again):
            drive(each, 3, first=4)
        assert same([team[rank].local(p) for p in weights], [team[rank].local(p) for p in twin])
        optimizer.add_param_group({"params": [parameter(6, 4, seed=9), parameter(7, seed=10)]})
        before = optimizer.state_dict()["state"]
        assert before.keys() == set(range(len(MIXED)))
        drive(optimizer, 1)
        assert optimizer.state_dict()["state"].keys() == set(range(len(MIXED) + 2))

    at_all(copied, 3)


@pytest.mark.parametrize(("before", "after"), [((3, 0), (2, 1)), ((2, None), (5, 0)), ((3, 2), (1, None))])
def test_another_number_of_ranks_goes_on(before: tuple[int, int | None], after: tuple[int, int | None]) -> None:
    own, alone = mixed(weight_decay=0.2)
    drive(alone, 9)
    team, pairs = spread(*before)
    at_all(lambda rank: drive(pairs[rank][1], 4), before[0])
    stored = whole_state(team, [optimizer for _, optimizer in pairs])
    made = [torch.full_like(p, torch.nan) for p in own]
    for each, (weights, _) in zip(team, pairs, strict=True):
        for parameter, whole in zip(weights, made, strict=True):
            whole[each.part_of(parameter).box] = each.local(parameter)
    others, again = spread(*after)

    def go_on(rank: int) -> None:
        weights, optimizer = again[rank]
        for parameter, whole in zip(weights, made, strict=True):
            parameter.data.copy_(whole)
        optimizer.load_state_dict(stored)
        drive(optimizer, 5, first=4)

    at_all(go_on, after[0])
    for each, (weights, _) in zip(others, again, strict=True):
        assert close([each.local(p) for p in own], [each.local(p) for p in weights])


# -- which parameters --------------------------------------------------------------------------------------------------


def test_embeddings_and_heads_are_no_matrices_and_only_matrices_decay() -> None:
    model = nn.ModuleDict(
        {
            "place": nn.Embedding(6, 4),  # as many places as the next layer has outputs: no head for that
            "table": nn.Embedding(11, 4),
            "mix": nn.Linear(4, 6),
            "norm": nn.LayerNorm(6),
            "conv": nn.Conv1d(3, 5, 3),
            "head": nn.Linear(6, 11),
        }
    )
    names = {id(each): name for name, each in model.named_parameters()}
    groups = [
        ([names[id(each)] for each in group["params"]], group["weight_decay"], group.get("matrices", True))
        for group in shampoo_groups(model, 0.2)
    ]
    rest = ["place.weight", "table.weight", "mix.bias", "norm.weight", "norm.bias", "conv.bias", "head.bias"]
    assert groups == [
        (["mix.weight"], 0.2, True),
        (["conv.weight", "head.weight"], 0.2, False),
        (rest, 0.0, False),
    ]
    drive(Shampoo(shampoo_groups(model, 0.2)), 2)


def bad_parameter(kind: str) -> nn.Parameter:
    shapes = {"scalar": (), "empty": (0, 4), "four": (2, 2, 3, 3), "complex": (3, 3)}
    return nn.Parameter(torch.ones(shapes[kind], dtype=torch.complex64 if kind == "complex" else torch.float32))


@pytest.mark.parametrize(
    ("kind", "says"),
    [("scalar", "matrices=False"), ("empty", "empty"), ("four", "matrices=False"), ("complex", "complex")],
)
def test_a_parameter_that_is_no_matrix_or_vector_is_refused(kind: str, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        Shampoo([bad_parameter(kind)])
    optimizer = Shampoo([parameter(2, 2)])
    with pytest.raises(ShapeError, match=says):
        optimizer.add_param_group({"params": [bad_parameter(kind)]})
    assert len(optimizer.param_groups) == 1
    if "matrices" in says:
        drive(Shampoo([{"params": [bad_parameter(kind)], "matrices": False}]), 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"refresh_steps": 0},
        {"refresh_steps": 2.5},
        {"max_block": 0},
        {"variant": "sop"},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": "fast"},
        {"eps": 0.0},
        {"weight_decay": -0.1},
        {"betas": (0.9, 0.95)},
        {"betas": (0.9, 1.0, 0.9)},
        {"betas": 0.9},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        Shampoo([parameter(2, 2)], **settings)


def test_a_sparse_gradient_is_refused() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = Shampoo(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ShapeError, match="sparse=False"):
        optimizer.step()
