"""A process that captures does not import torch's own compiler, and one that uses it finds it as it always is."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

CAPTURE = """
import sys
import torch
import dynajit

x = torch.ones(3, 4)
with torch.no_grad():
    assert dynajit.compile(lambda x: torch.nn.functional.gelu(x @ x.mT) * 2)(x).shape == (3, 3)
assert "torch._dynamo.eval_frame" not in sys.modules
"""

USES = {
    "its settings": """
        import torch._dynamo.config as config
        config.recompile_limit = 3
        assert torch._dynamo.config is config and "torch._dynamo.eval_frame" not in sys.modules
        import torch._dynamo.utils
        assert torch._dynamo.config is config and torch._dynamo.config.recompile_limit == 3
    """,
    "torch.compile": """
        compiled = torch.compile(lambda x: x.sin() * 2, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        assert torch._dynamo is sys.modules["torch._dynamo"]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    """,
    "one of its modules": """
        from torch._dynamo.utils import counters
        import torch._dynamo.utils as again
        assert again.counters is counters and torch._dynamo.utils is again is sys.modules["torch._dynamo.utils"]
        assert torch._dynamo.symbolic_convert.counters is counters  # there is one of it
        assert again.__spec__.loader is again.__loader__ and again.__spec__.origin == again.__file__
    """,
    "a name from it": """
        from torch._dynamo import reset, config
        reset()
        assert config is torch._dynamo.config and torch._dynamo is sys.modules["torch._dynamo"]
    """,
    "the module itself": """
        import inspect
        early = torch._dynamo
        assert early.__file__.endswith("__init__.py") and not hasattr(early, "__wrapped__")
        inspect.getmodule(lambda: 0)
        assert "torch._dynamo.eval_frame" not in sys.modules
        early.reset()
        import torch._dynamo
        assert torch._dynamo is not early and early.reset is torch._dynamo.reset
    """,
    "threads": """
        import threading
        found, start = [], threading.Barrier(8)
        def use(number):
            start.wait()
            if number % 2:
                from torch._dynamo.utils import counters
            else:
                counters = torch._dynamo.utils.counters
            found.extend((counters, torch._dynamo.symbolic_convert.counters))
        threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(found) == 16 and all(each is found[0] for each in found)
    """,
    "what torch hides from it": """
        hidden = torch._refs.mul  # computed metadata above, before there was anything to hide from
        hidden(x, 2)
        import torch._dynamo
        torch.testing.assert_close(hidden(x, 2), x * 2)
        assert torch.compile(lambda x: torch._refs.mul(x, 2), backend="eager")(x).equal(x * 2)
    """,
    "a compiled function": """
        def uses(x):
            return x * 2 if torch._dynamo.is_compiling() else x * 3
        assert dynajit.compile(uses)(x).shape == x.shape
        report = dynajit.explain(lambda x: (torch._dynamo.is_compiling(), x + 1))(x)
        assert not any("importlib" in brk.reason for brk in report.break_reasons)
    """,
    "a seed": """
        from dynajit.testing import CompileCounter
        def seeds(x, seed):
            torch.manual_seed(seed)
            return x + torch.rand(4)
        counter = CompileCounter()
        compiled = dynajit.compile(seeds, backend=counter)
        for seed in range(4):  # sizes and numbers that are symbols import the package
            assert compiled(x, seed).equal(seeds(x, seed))
        assert counter.frame_count == 2
    """,
    "backward": """
        w = torch.ones(4, requires_grad=True)
        dynajit.compile(lambda w: (x * w).sum())(w).backward()
        assert w.grad.equal(torch.full((4,), 3.0))
        assert torch._dynamo is sys.modules["torch._dynamo"]
    """,
}


def run(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True, timeout=300)


@pytest.mark.parametrize("use", USES)
def test_used_after_a_capture(use: str) -> None:
    run(CAPTURE + textwrap.dedent(USES[use]) + '\nassert "torch._dynamo" in sys.modules\n')


def test_used_before() -> None:
    before = "import torch._dynamo\nmodule = torch._dynamo\n"
    captured = CAPTURE.replace('assert "torch._dynamo.eval_frame" not in sys.modules', "assert torch._dynamo is module")
    run(before + captured)
