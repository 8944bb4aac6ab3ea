"""Operations inside of `torch.func`'s transforms whose results nobody uses: they draw, warn and raise as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jacfwd, jvp, vmap

from dynajit.testing import assert_same

_PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "index": lambda x: vmap(lambda row: row[torch.tensor([0, 2])])(x),
    "index out of bounds": lambda x: vmap(lambda row: row[torch.tensor([0, 7])])(x),
    "gather": lambda x: vmap(lambda row, at: row.gather(0, at))(x, torch.zeros(4, 1, dtype=torch.int64)),
    "written": lambda x: vmap(lambda row: row.mul_(2), randomness="different")(x),
    "drawn in place": lambda x: vmap(lambda row: row.normal_(), randomness="different")(x),
    "drawn in place of a copy": lambda x: vmap(lambda row: row.bernoulli_(), randomness="different")(x.clone()),
    "drawn": lambda x: vmap(lambda row: torch.rand(3), randomness="different")(x),
    "drawn once": lambda x: vmap(lambda row: torch.rand(3) * row, randomness="same")(x),
    "dropout": lambda x: vmap(lambda row: row + F.dropout(torch.ones(3)), randomness="different")(x),
    "jacfwd": lambda x: jacfwd(lambda x: torch.rand(3) * x, randomness="different")(x),
    "grad": lambda x: grad(lambda x: (F.dropout(x) * x)[torch.tensor([1])].sum())(x),
    "jvp": lambda x: jvp(lambda x: F.dropout(x)[torch.tensor([1])], (x,), (x,)),
    "warns": lambda x: vmap(lambda row: row.reshape(1, 3, 1).T)(x),
}


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_as_in_eager(name: str, backend: str, is_used: bool) -> None:
    def program(x: Tensor) -> object:
        found = _PROGRAMS[name](x)
        return (found if is_used else None), torch.rand(1)

    assert_same(program, torch.linspace(0, 1, 12).reshape(4, 3), backend=backend)
