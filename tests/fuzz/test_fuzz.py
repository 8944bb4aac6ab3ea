"""A bounded part of the fuzzer: `python tests/fuzz/run.py` runs for as long as one likes."""

from __future__ import annotations

import many
import pytest
import torch
from fuzz_broad import BROAD
from fuzz_compare import check, failed_passes_leave_nothing
from fuzz_generate import program
from fuzz_shrink import shrink
from fuzz_wide import WIDE
from fuzz_world import Call, random_calls

# Differences that are known and open, so that the others are seen.
KNOWN: dict[tuple[str, int], str] = {}


OF_EAGER = [range(first, first + 10) for first in (*range(0, 60, 10), BROAD, WIDE)]
OF_CODEGEN = [range(12), range(BROAD, BROAD + 6), range(WIDE, WIDE + 6)]


@pytest.mark.parametrize(
    "backend, seeds", [*(("eager", seeds) for seeds in OF_EAGER), *(("codegen", seeds) for seeds in OF_CODEGEN)]
)
def test_random_programs_do_what_eager_does(backend: str, seeds: range) -> None:
    for seed in seeds:
        if (backend, seed) in KNOWN:
            continue
        finding = check(program(seed), random_calls(seed, seed >= BROAD, seed >= WIDE), backend, f"<fuzz {seed}>")
        assert finding is None, f"python tests/fuzz/run.py --backend {backend} --seeds {seed} {seed + 1}\n{finding}"


# Programs that differ from themselves when not compiled at the same place: the comparison must see each.
DIFFERENCES = {
    "result": "return x + (0 if eager() else 1)",
    "result: mutation": "x.add_(0 if eager() else 1)",
    "result: aliasing": "return x.view(-1) if eager() else x.clone().view(-1)",
    "result: identity": "return items if eager() else list(items)",
    "result: global": "SEEN.append(eager())",
    "exception": "raise ValueError('eager' if eager() else 'compiled')",
    "printed": "print(eager())",
    "grad mode": "torch.set_grad_enabled(eager())",
    "random state": "eager() and torch.rand(1)",
    "gradients": "return torch.sin(x) if eager() else torch.sin(x) + (x - x.detach()) * 2",
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_the_comparison_sees(kind: str) -> None:
    source = f"""
COUNT, SEEN = 1, []
def eager():
    return not dynajit.is_compiling()
def main(x, y, z, n, flag, items, table, obj):
    {DIFFERENCES[kind]}
"""
    finding = check(source, [Call(seed=1, grad="mutation" not in kind)], "eager")
    assert finding is not None and finding.kind == kind.split(":")[0]


def test_what_rounding_decides_is_no_finding() -> None:
    source = """
COUNT, SEEN = 1, []
def main(x, y, z, n, flag, items, table, obj):
    if dynajit.is_compiling():
        x = x * (1 + 2e-7)
    return OUTCOME
"""
    calls = [Call(seed=1)]
    assert check(source.replace("OUTCOME", "(x * 3e6).sin()"), calls, "eager") is None
    assert check(source.replace("OUTCOME", "x.float() * 1.1 + dynajit.is_compiling()"), calls, "eager") is not None


def test_a_program_that_lost_its_globals_is_compared() -> None:
    source = "def main(x, y, z, n, flag, items, table, obj):\n    return x + 1\n"
    assert check(source, [Call(seed=1, grad=True)], "eager") is None


def test_shrinking_keeps_what_fails() -> None:
    source = """
def main():
    a = 1
    for i in range(3):
        if i:
            wrong()
        else:
            b = 2
    return a
"""
    small, calls = shrink(source, [Call(seed=1), Call(seed=2)], lambda text, calls: "wrong()" in text)
    assert small == "def main():\n    wrong()\n"
    assert len(calls) == 1


def test_programs_are_python_and_reproducible() -> None:
    for seed in (
        *range(200),
        *range(WIDE, WIDE + 50),
        BROAD + 6_001_008,
    ):  # the last one's first draw has `:=` where Python refuses it
        compile(program(seed), "<fuzz>", "exec")
        kinds = (seed >= BROAD, seed >= WIDE)
        assert program(seed) == program(seed) and random_calls(seed, *kinds) == random_calls(seed, *kinds)


@pytest.mark.parametrize("option", ["--processes", "--chunk"])
def test_many_needs_a_process(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert many.parse_options([option, "1"])
    with pytest.raises(SystemExit):
        many.parse_options([option, "0"])
    assert f"{option} is at least 1" in capsys.readouterr().err


def test_many_divides_the_seeds() -> None:
    chunks = list(many.chunks_of(range(3, 10), ["eager", "codegen"], 4))
    assert [(chunk.backend, chunk.first, chunk.last) for chunk in chunks] == [
        ("eager", 3, 7),
        ("codegen", 3, 7),
        ("eager", 7, 10),
        ("codegen", 7, 10),
    ]


def _check(body: str) -> str | None:
    source = f"""
COUNT, SEEN = 1, []
def eager():
    return not dynajit.is_compiling()
def main(x, y, z, n, flag, items, table, obj):
    {body}
"""
    finding = check(source, [Call(seed=1, grad=True)], "eager")
    return finding and finding.kind


def test_a_failed_backward_pass_leaves_no_gradients() -> None:
    x, y, z = (torch.ones(3, requires_grad=True) for _ in range(3))
    z.grad = torch.ones(3)
    written = y.exp()
    total = written.sum() + (x * 2).sum() + (z * 2).sum()  # the engine begins at the end
    written.detach().mul_(2)
    with failed_passes_leave_nothing():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()
        assert x.grad is None and y.grad is None and z.grad.tolist() == [1] * 3
        (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2] * 3


def test_what_a_finaliser_prints_may_come_sooner_but_not_later() -> None:
    held = """
    class Ends:
        def __del__(self): print('end')
    made = Ends()
    if {0}: made.itself = made"""
    assert _check(held.format("eager()")) is None
    assert _check(held.format("not eager()")) == "printed"
