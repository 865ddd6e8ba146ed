"""Run by torchrun: a model's slow state over several ranks, beside that of the same model in one process.

    torchrun --nproc-per-node N layouts.py LAYOUT ...

Every rank also has the whole model for itself. Whatever the layout, both must publish the same bytes, hold the same
references and end with the same weights.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from headers import header
from isthmus.checkpoint import LocalStorage, Reader, commit, draft, load_latest
from isthmus.island import Alone, TorchRanks, together
from isthmus.session import cut_model
from isthmus.session.copies import Place, SideStream
from isthmus.session.orders import Arrive, Mode
from isthmus.session.shares import Shares
from isthmus.session.slow import SlowState

OUTER = {"outer_lr": 0.7, "momentum": 0.6}


class Model(nn.Module):
    """Tensors that layouts divide evenly, unevenly and not at all; ``up`` and ``down`` are for tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(96, 130)
        self.up = nn.Linear(130, 256, bias=True)
        self.down = nn.Linear(256, 130, bias=False)
        self.experts = nn.Parameter(torch.randn(6, 40, 130))
        self.odd = nn.Parameter(torch.randn(7, 33))
        self.gain = nn.Parameter(torch.randn(5))
        self.register_buffer("bias", torch.randn(8))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embed(tokens)
        rows = rows + self.down(torch.relu(self.up(rows)))
        return (rows @ self.experts.mT).sum() + self.odd.sum() + (self.gain**2).sum()


def apply_layout(model: Model, name: str) -> nn.Module:
    size = dist.get_world_size()
    if name == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if name == "fsdp":
        return fully_shard(model)
    if name == "hsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("ddp", "fsdp")))
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "inner"))
    if name.endswith("tp"):
        parallelize_module(model, mesh["inner"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        parts = distribute_tensor(model.experts.detach(), mesh["inner"], [Shard(0)])
        model.experts = nn.Parameter(parts)
    return fully_shard(model, mesh=mesh["fsdp"]) if name.startswith("fsdp") else model


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(model: nn.Module, seed: int) -> None:
    """Move every tensor by as much, whatever holds it."""
    generator = torch.Generator().manual_seed(seed)
    named = {
        name.removeprefix("module."): tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    for _, tensor in sorted(named.items()):
        change = torch.randn(tensor.shape, generator=generator) * 0.01
        with torch.no_grad():
            if isinstance(tensor, DTensor):
                tensor.add_(distribute_tensor(change, tensor.device_mesh, tensor.placements, src_data_rank=None))
            else:
                tensor.add_(change)


def publish(slow: SlowState, shares: Shares, fragment: int, codec: str) -> tuple[memoryview, memoryview | None]:
    own = memoryview(bytearray(slow.share_bytes(fragment, codec)))
    if slow.side is None:
        slow.encode("b", fragment, codec, own)
    else:
        slow.encode("b", fragment, codec, room := slow.side.room(own.nbytes))
        slow.side.down(room, own).finish()
    said = header(fragment, codec, slow.payload_bytes(fragment, codec))
    return own, shares.gather(said, own, lambda size: memoryview(bytearray(size)))


def check(layout: str, ranks: TorchRanks) -> None:
    settings = {"num_fragments": 3, "peers": ("b",), "embedding_codec": "int8"}
    lone, spread = Model(), apply_layout(Model(), layout)
    one = cut_model(lone, **settings).slow
    place = Place(on_host=layout in ("ddp", "fsdp-tp"), side=SideStream(torch.device("cpu")))
    many = cut_model(spread, **settings, ranks=ranks, place=place).slow
    alone, shares = Shares(one.fragments, "int8", Alone()), Shares(many.fragments, "int8", ranks)
    assert one.fragments == many.fragments
    assert one.initial_hashes == many.initial_hashes
    payloads: dict[str, tuple[int, str, object, bytes]] = {}
    for turn, codec in enumerate(("int4", "int8", "bf16", "fp32", "int4")):
        for fragment in range(3):
            for model, slow in ((lone, one), (spread, many)):
                train(model, 10 * turn + fragment)
                slow.depart(fragment, **OUTER)
            sent, wanted = publish(one, alone, fragment, codec)
            own, gathered = publish(many, shares, fragment, codec)
            if ranks.rank == 0:
                assert gathered == wanted, f"{codec} payload of fragment {fragment}"
            mine, theirs = (header(fragment, codec, sent.nbytes, weight_tokens=tokens) for tokens in (10, 30))
            mode = Mode.ADOPT if turn == 3 else Mode.CORRECT
            meeting = Arrive(("b",), fragment, mine, (theirs,), 0, mode)
            apart = shares.scatter(theirs, sent)
            assert apart == own
            many.check(theirs, apart)
            assert one.arrive(meeting, [sent, sent]) == many.arrive(meeting, [own, apart])
            payload = shares.to_save(fragment, codec, own.toreadonly())
            assert shares.saved(fragment, codec, payload) == own
            assert shares.saved(fragment, codec, bytes(sent)) == own, "of one process"
            payloads[f"{turn}-{fragment}"] = fragment, codec, payload, bytes(sent)
    with one.swapped_in(), many.swapped_in():
        assert_same(lone, spread)
    assert_same(lone, spread)
    assert one.digest() == many.digest()
    rows = sum(rows.numel() for rows in many.slow_weights().values())
    assert rows <= 1.3 * sum(fragment.numel for fragment in one.fragments) / ranks.size + 2000
    saved = {"slow": many.state_dict(), "payloads": payloads}
    goes_on(one, many, reload(saved, ranks), alone)
    goes_on(one, many, {"slow": one.state_dict(), "payloads": {}}, alone)


def reload(state: dict[str, Any], ranks: TorchRanks) -> dict[str, Any]:
    """A state by way of the disk."""
    folder = [tempfile.mkdtemp() if ranks.rank == 0 else ""]
    dist.broadcast_object_list(folder)
    storage = LocalStorage(Path(folder[0]))
    commit(storage, draft(storage, 3, state, ranks), ranks)
    reader = Reader(ranks.rank, ranks.size, partial(together, ranks), lambda own: ranks.collect(own)[0])
    ranks.collect(b"")
    found = load_latest(storage, reader)
    assert found is not None
    return found[0]


def goes_on(one: SlowState, many: SlowState, state: dict[str, Any], alone: Shares) -> None:
    """One process and several ranks that begin anew take over a state of either."""
    settings = {"num_fragments": 3, "peers": ("b",), "embedding_codec": "int8"}
    lone = cut_model(Model(), **settings).slow
    lone.load_state_dict(state["slow"])
    assert_same_state(lone.state_dict(), one.state_dict())
    wanted, before = many.digest(), many.state_dict()
    kept = {key: {name: part.local.clone() for name, part in before[key].items()} for key in ("slow", "velocity")}
    for rows in many.slow_weights().values():
        rows.zero_()
    many.load_state_dict(state["slow"])
    assert many.digest() == wanted
    for fragment in range(3):
        assert many.reference_hash("b", fragment) == one.reference_hash("b", fragment)
    for key, parts in kept.items():
        for name, part in many.state_dict()[key].items():
            assert torch.equal(part.local, parts[name]), (key, name)
    for fragment, codec, payload, sent in state["payloads"].values():
        assert alone.saved(fragment, codec, payload) == sent


def assert_same_state(ours: object, theirs: object) -> None:
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same_state(ours[key], theirs[key])
    elif isinstance(theirs, Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


def assert_same(lone: nn.Module, spread: nn.Module) -> None:
    named = {name.removeprefix("module."): tensor for name, tensor in spread.state_dict().items()}
    for name, tensor in lone.state_dict().items():
        assert torch.equal(tensor, whole(named[name])), name


def main(layouts: list[str]) -> None:
    dist.init_process_group("gloo")
    ranks = TorchRanks()
    for layout in layouts:
        check(layout, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
