"""Group norm of large groups in terms of sums over channels: the same values in either layout, and for far means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dynajit.aot.passes import group_norm

RULE = group_norm.RULES[torch.ops.aten.native_group_norm.default]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [10, 1 << 20])
def test_as_torch(layout: torch.memory_format, dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_norm, "ONE_PROGRAM", most)
    torch.manual_seed(0)
    x = (torch.randn(2, 12, 5, 7) + 30).to(dtype).to(memory_format=layout)
    weight, bias = torch.randn(12, dtype=dtype), torch.randn(12, dtype=dtype)
    for given in ((weight, bias), (None, None)):
        found = RULE(x, *given, 2, 12, 35, 3, 1e-5)
        wide = [None if part is None else part.double() for part in given]
        expected = F.group_norm(x.double(), 3, *wide)
        tolerance = 2e-5 if dtype is torch.float32 else 3e-2
        torch.testing.assert_close(found[0].double(), expected, rtol=tolerance, atol=tolerance)
        assert [part.shape for part in found[1:]] == [(2, 3), (2, 3)]
        assert {part.dtype for part in found} == {dtype}


def test_not_a_number_stays_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_norm, "ONE_PROGRAM", 10)
    x = torch.randn(1, 4, 3, 3)
    x[0, 1, 1, 1], x[0, 2, 0, 0] = float("nan"), float("inf")
    found = RULE(torch.cat([x, torch.randn(1, 4, 3, 3)]), None, None, 2, 4, 9, 2, 1e-5)[0]
    assert found[0].isnan().all()
    assert not found[1].isnan().any()
