"""Shampoo against its own formulas in float64, written in the parameters' coordinates, and against another library."""

from __future__ import annotations

import copy
from collections.abc import Callable

import heavyball
import pytest
import torch
from torch import Tensor

from isthmus.optim import Shampoo
from isthmus.optim.bases import DRIFT
from isthmus.optim.blocks import DAMPING, VARIANTS

LR, BETAS, EPS, DECAY = 0.02, (0.9, 0.95, 0.8), 1e-8, 0.1


def gradients(*shape: int, steps: int, seed: int = 0) -> list[Tensor]:
    """Gradients whose rows and columns are correlated, more and more differently."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns, change = (torch.randn(n, n, generator=generator) for n in (*shape, shape[0]))
    return [(rows + 0.02 * t * change) @ torch.randn(shape, generator=generator) @ columns for t in range(steps)]


class Dense:
    """One matrix under Shampoo, refreshed every ``every`` steps, with factors that know nothing of bases."""

    def __init__(self, start: Tensor, variant: str, every: int) -> None:
        self.w, self.rule, self.every = start.double(), VARIANTS[variant], every
        self.t = 0
        m, n = start.shape
        self.left, self.right = torch.zeros(m, m).double(), torch.zeros(n, n).double()
        self.q_left, self.q_right = torch.eye(m).double(), torch.eye(n).double()
        self.mean, self.square = torch.zeros(m, n).double(), torch.zeros(m, n).double()
        self.full = self.iterated = 0
        self.fresh = True

    def step(self, g: Tensor) -> None:
        g = g.double()
        self.t += 1
        m, n = g.shape
        share1, share2, share3 = ((1 - beta) / (1 - beta**self.t) for beta in BETAS)
        inverse_left, inverse_right = torch.eye(m).double(), torch.eye(n).double()
        if self.rule.weighed and self.t == 1:
            inverse_left /= (g**2).mean()
        elif self.rule.weighed:
            inverse_left = self.power(self.q_left, self.left, -1)
            inverse_right = self.power(self.q_right, self.right, -1)
        self.left = (1 - share3) * self.left + share3 * g @ inverse_right @ g.T / n
        self.right = (1 - share3) * self.right + share3 * g.T @ inverse_left @ g / m
        self.mean = (1 - share1) * self.mean + share1 * g
        if self.rule.root_inverse:
            self.square = (1 - share2) * self.square + share2 * g**2
            p = -0.5 if self.rule.weighed else -0.25
            u = self.power(self.q_left, self.left, p) @ self.mean @ self.power(self.q_right, self.right, p)
            u *= (self.mean / (self.square.sqrt() + EPS)).norm() / u.norm()
        else:
            self.square = (1 - share2) * self.square + share2 * (self.q_left.T @ g @ self.q_right) ** 2
            rotated = self.q_left.T @ self.mean @ self.q_right
            u = self.q_left @ (rotated / (self.square.sqrt() + EPS)) @ self.q_right.T
        self.w -= LR * (u + DECAY * self.w)
        if (self.t - 1) % self.every == self.every // 2:
            q_left, q_right = self.refreshed(self.q_left, self.left), self.refreshed(self.q_right, self.right)
            if not self.rule.root_inverse:
                self.square = ((self.q_left.T @ q_left) ** 2).T @ self.square @ (self.q_right.T @ q_right) ** 2
            self.q_left, self.q_right, self.fresh = q_left, q_right, False

    def power(self, basis: Tensor, factor: Tensor, exponent: float) -> Tensor:
        values = (basis.T @ factor @ basis).diagonal()
        return basis @ values.clamp(min=DAMPING * values.max()).pow(exponent).diag() @ basis.T

    def refreshed(self, basis: Tensor, factor: Tensor) -> Tensor:
        local = basis.T @ factor @ basis
        lift = len(factor) ** 0.5 * 8 * torch.finfo(torch.float32).eps * local.diagonal().max()
        root = local.diagonal().clamp(min=lift).pow(0.25)
        squares = (local / root[:, None] / root[None, :]) ** 2
        if self.fresh or 1 - squares.diagonal().sum() / squares.sum() > DRIFT:
            self.full += 1
            return torch.linalg.eigh(factor)[1]
        self.iterated += 1
        order = local.diagonal().argsort(descending=True)
        new = torch.empty_like(basis)
        new[:, order] = torch.linalg.qr((factor + lift * torch.eye(len(factor))) @ basis[:, order])[0]
        return new


@pytest.mark.parametrize(
    ("every", "shape"), [(1, (5, 5)), (4, (6, 4))]
)  # a factor's first basis is not for rounding to choose
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_matrix_moves_as_the_formulas_say(variant: str, every: int, shape: tuple[int, int]) -> None:
    parameter = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    dense = Dense(parameter.detach(), variant, every)
    optimizer = Shampoo([parameter], LR, BETAS, EPS, DECAY, variant=variant, refresh_steps=every)
    for gradient in gradients(*shape, steps=25):
        parameter.grad = gradient
        optimizer.step()
        dense.step(gradient)
        torch.testing.assert_close(parameter.detach().double(), dense.w, rtol=1e-3, atol=5e-4)
    assert dense.full >= 2 and dense.iterated > 2, "both ways of refreshing were seen"
    state = optimizer.state[parameter]
    for side, factor in (("left", dense.left), ("right", dense.right)):
        basis, own = state[f"{side}_basis"][0].double(), state[f"{side}_factor"][0].double()
        allowed = 2e-3 if VARIANTS[variant].weighed else 1e-5  # dividing by small eigenvalues makes rounding large
        torch.testing.assert_close(basis @ own @ basis.T, factor, rtol=0, atol=allowed * float(factor.abs().max()))
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(factor)).double(), rtol=0, atol=2e-6)


def heavyball_steps(name: str, start: Tensor, state: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Another library's optimizer that goes on from ``state``, as one that has run for long."""
    heavyball.utils.compile_mode = None
    parameter = torch.nn.Parameter(start.clone())
    optimizer = getattr(heavyball, name)(
        [parameter],
        lr=LR,
        betas=BETAS[:2],
        shampoo_beta=BETAS[2],
        eps=EPS,
        weight_decay=0.0,
        precondition_frequency=1,
        merge_dims=False,
    )
    parameter.grad = torch.ones_like(start)
    optimizer.step()
    parameter.data.copy_(start)
    (own,) = optimizer.state[parameter].values()
    own["step"].fill_(100_000)
    for key, value in own.items():
        if "exp_avg_sq" in key:
            value.copy_(state["exp_avg_sq"])
        elif "exp_avg" in key:
            value.copy_(state["exp_avg"])
        elif "_Q_" in key or "_GG_" in key:
            for side, tensor in zip(("left", "right"), value, strict=True):
                basis, factor = state[f"{side}_basis"][0], state[f"{side}_factor"][0]
                terms = 1 if "kl" in name.lower() else start.numel() // len(basis[0])  # SOAP's are sums, not means
                tensor.copy_(basis if "_Q_" in key else basis @ factor @ basis.T * terms)

    def step(gradient: Tensor) -> Tensor:
        parameter.grad = gradient.clone()
        optimizer.step()
        return parameter.detach()

    return step


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "theirs"), [("soap", "HeavySOAP"), ("kl-soap", "HeavyKLSOAP")])
def test_another_library_takes_the_same_steps(variant: str, theirs: str) -> None:
    """heavyball, once both are in the same state; its Heavy forms carry mean squares over as ours do."""
    given = gradients(6, 4, steps=60, seed=3)
    parameter = torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    optimizer = Shampoo([parameter], LR, BETAS, EPS, weight_decay=0.0, variant=variant, refresh_steps=1)
    for gradient in given[:30]:
        parameter.grad = gradient
        optimizer.step()
    optimizer.state[parameter]["step"].fill_(100_000)
    start = parameter.detach().clone()
    other = heavyball_steps(theirs, start, copy.deepcopy(optimizer.state[parameter]))
    for gradient in given[30:]:
        parameter.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(parameter.detach(), other(gradient), rtol=2e-3, atol=2e-4)
    assert (parameter.detach() - start).abs().max() > LR


def test_vectors_and_groups_without_matrices_move_as_torchs_adamw_does() -> None:
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in ((5,), (7, 3), ())]
    own, torchs = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    ours = Shampoo([{"params": own[:1]}, {"params": own[1:], "matrices": False}], LR, BETAS, EPS, DECAY)
    theirs = torch.optim.AdamW(torchs, LR, BETAS[:2], EPS, DECAY, fused=True)
    for _ in range(5):
        for one, two in zip(own, torchs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        ours.step()
        theirs.step()
    assert all(one.equal(two) for one, two in zip(own, torchs, strict=True))
