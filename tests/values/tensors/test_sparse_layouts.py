"""Sparse tensors that a program makes: equal to eager with and without gradients, and no crash of the process."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Program = Callable[[torch.Tensor], Any]


def rows(x: torch.Tensor) -> Any:
    sparse = x.to_sparse_csr()
    return sparse @ torch.ones(6, 2), sparse.crow_indices()


def columns(x: torch.Tensor) -> Any:
    return (x.relu().to_sparse_csc() * 2).to_dense()


def blocks(x: torch.Tensor) -> Any:
    sparse = x.to_sparse_bsr((2, 2))
    return sparse.values() * 2, sparse.to_dense()


def returned(x: torch.Tensor) -> Any:
    return x.relu().to_sparse_csr()


def made_of_parts(x: torch.Tensor) -> Any:
    sparse = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), x[0, :2], size=(2, 2))
    return sparse.to_dense() + 1, sparse @ x[:2]


def coordinates(x: torch.Tensor) -> Any:
    sparse = x.to_sparse()
    return sparse.coalesce().indices(), (sparse + sparse).to_dense(), torch.sparse.sum(sparse, 1).to_dense()


def multiplied(x: torch.Tensor) -> Any:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 3], [1, 2, 0]]), x[0, :3], (4, 4))
    return torch.sparse.mm(sparse, x).relu() + 1


def normed(x: torch.Tensor) -> Any:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 3], [1, 2, 0]]), x[0, :3], (4, 4))
    return torch.sparse.softmax(sparse, 1).to_dense()


def test_a_product_with_a_sparse_matrix_is_in_the_graph() -> None:
    assert_same(multiplied, torch.ones(4, 6), graphs=1, breaks=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [rows, columns, blocks, returned, made_of_parts, coordinates, multiplied, normed])
def test_sparse_tensors_made_inside(program: Program, trains: bool, backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compressed layouts are in beta
        assert_same(program, torch.arange(24.0).reshape(4, 6).sub_(12).requires_grad_(trains), backend=backend)
