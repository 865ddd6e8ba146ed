"""Symmetric products of which half is computed."""

from __future__ import annotations

import pytest
import torch

from isthmus.optim.halves import add_lower, from_lower


@pytest.mark.parametrize("side", [1, 7, 255, 513, 777, 1300])
def test_the_lower_triangle_is_that_of_the_whole_product(side: int) -> None:
    generator = torch.Generator().manual_seed(side)
    gradients = torch.randn(2, side, 5, generator=generator)
    sums = torch.randn(2, side, side, generator=generator)
    wanted = sums + gradients @ gradients.mT
    add_lower(sums, gradients, gradients.mT)
    torch.testing.assert_close(sums.tril(), wanted.tril())


def test_a_symmetric_matrix_comes_from_its_lower_triangle_whatever_lies_above_it() -> None:
    matrix = torch.arange(9.0).view(1, 3, 3)
    whole = from_lower(matrix)
    assert torch.equal(whole.tril(), matrix.tril())
    assert torch.equal(whole, whole.mT)
