"""The report as text, as data and as a page, the page in a real browser where there is one."""

import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.config import config
from dynajit.report import debug, phases, progress
from dynajit.report.explain import ExplainReport


def inner(x: Tensor) -> Tensor:
    y = torch.sin(x)
    print("x < 1 & y")
    return y + 1


def program(x: Tensor) -> Tensor:
    y = inner(x) * 2
    if y.sum() > 1e9:
        y = y - 1
    return y.softmax(-1)


@pytest.fixture(scope="module")
def report() -> ExplainReport:
    dynajit.reset()
    return dynajit.explain(program)(torch.randn(3, 4))


def test_the_text_has_all_parts(report: ExplainReport) -> None:
    text = str(report)
    for part in (
        "3 graphs, 2 graph breaks",
        "Called through: program",
        "Cost: about",
        "What to do:",
        "Kernels:",
        "fuses sin",
    ):
        assert part in text, part
    assert re.search(r"L\['x'\]: torch.Tensor float32 .*  # line \d+$", text, re.M)
    assert re.search(r"1\. \[0/0\] \d operations? of program \(.*test_explain_page.py:\d+", text)


def test_the_data_is_json(report: ExplainReport) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data["graph_count"] == 3 and len(data["breaks"]) == 2
    assert data["graphs"][0]["code"][0]["kernels"][0]["bytes_moved"] == 2 * 3 * 4 * 4
    assert any("L['x']" in guard["source"] for guard in data["frames"][0]["guards"])


def test_a_function_that_raises_gives_the_report_up_to_there() -> None:
    def fails(x: Tensor) -> Tensor:
        y = x.sin()
        print(y)
        raise ValueError("<mine>")

    report = dynajit.explain(fails)(torch.randn(3))
    assert isinstance(report.error, ValueError) and report.graph_count == 1
    assert "The call raised ValueError: <mine>" in str(report)
    assert report.to_dict()["error"] == "ValueError: <mine>"


class _Tags(HTMLParser):
    """Checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attrs if name == "id" and value}
        if tag not in ("meta", "input", "br", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_network(report: ExplainReport, tmp_path: Path) -> None:
    report.html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert {"source", "graph-breaks", "graphs", "kernels", "guards", "compile-time", "search"} <= tags.ids
    assert "print(&quot;x &lt; 1 &amp; y&quot;)" in text
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


def test_a_module_of_many_operations_is_not_drawn(tmp_path: Path) -> None:
    net = nn.Sequential(*[nn.ReLU() for _ in range(200)])
    report = dynajit.explain(net, backend="eager")(torch.randn(2))
    report.html(tmp_path / "report.html")
    assert "too many to draw" in (tmp_path / "report.html").read_text()


def test_a_break_of_several_variants_is_shown_once(tmp_path: Path) -> None:
    def program(x: Tensor, flag: bool) -> Tensor:
        y = x.sin() + flag
        print(end="")
        return y * 2

    def calls(x: Tensor) -> Tensor:
        compiled = dynajit.compile(program)
        return compiled(x, True) + compiled(x, False)

    report = dynajit.explain(dynajit.disable(calls))(torch.ones(3))
    assert report.graph_break_count == 2
    ((found, times),) = report.break_places
    assert found.kind == "input-output" and times == 2
    assert str(report).count("[input-output]") == 1 and "The graph breaks are in 1 place." in str(report)
    report.html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<p>Met 2 times while compiling.</p>") == 1


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_page_in_a_browser(report: ExplainReport, tmp_path: Path) -> None:
    report.html(tmp_path / "report.html")
    page = tmp_path / "report.html"
    probe = (
        "<script>window.onerror = (m) => document.body.dataset.error = m;"
        "document.body.dataset.svg = document.querySelector('svg').getBoundingClientRect().width;"
        'const b = document.getElementById("search"); b.value = "softmax"; b.dispatchEvent(new Event("input"));'
        "document.body.dataset.hidden = document.querySelectorAll('.searchable.hidden').length;"
        "document.body.dataset.found = document.getElementById('found').textContent;"
        "document.body.dataset.broken = getComputedStyle(document.querySelector('tr.broken')).backgroundColor;"
        "</script></body>"
    )
    page.write_text(page.read_text().replace("</body>", probe))
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dumped = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120).stdout
    data = dict(re.findall(r'data-(\w+)="([^"]*)"', dumped[dumped.index("<body") :]))
    assert "error" not in data
    assert int(data["hidden"]) > 5 and int(data["found"].split()[0]) >= 1
    assert data["broken"] == "rgb(255, 201, 194)" and float(data["svg"]) > 100


# ------------------------------------------------------------------------------------------------ times, progress


def test_compile_times_are_counted_and_cleared(tmp_path: Path) -> None:
    dynajit.reset()
    dynajit.compile(lambda x: x.sin() + 1)(torch.ones(3))
    times = dynajit.compile_times()
    assert times.frames == 1 and times.seconds["interpretation"] > 0 and "total" in str(times)
    times.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"interpretation", "guards"} <= {event["name"] for event in events}
    dynajit.reset()
    assert times.frames == 0 and not times.seconds


def test_progress_says_phase_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    monkeypatch.setattr(progress, "_PERIOD_S", 0.001)
    with config.patch(progress="on"), phases.collect(), progress.watch("forward"), phases.timer("c_compile"):
        progress.count(3, 12)
        with progress.watch("inside"):
            while "3 of 12 kernels" not in stream.getvalue():
                pass
    assert "dynajit: compiling forward: c_compile, 3 of 12 kernels" in stream.getvalue()
    assert "inside" not in stream.getvalue()
    assert stream.getvalue().endswith("\r")


def test_no_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    with progress.watch("forward"):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_profiles_name_the_graphs(backend: str) -> None:
    dynajit.reset()
    compiled = dynajit.compile(program, backend=backend)
    compiled(torch.randn(3, 4))
    with torch.profiler.profile() as profile:
        compiled(torch.randn(3, 4))
    names = [event.key for event in profile.key_averages() if event.key.startswith("dynajit [")]
    assert len(names) == 3 and any(name.endswith("] program") for name in names)


def test_other_observers_get_the_names(tmp_path: Path) -> None:
    """NVTX ranges come from the same callbacks of torch's; this observer needs no GPU."""
    dynajit.reset()
    compiled = dynajit.compile(program)
    compiled(torch.randn(3, 4))
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    observer.start()
    compiled(torch.randn(3, 4))
    observer.stop()
    observer.unregister_callback()
    names = [node["name"] for node in json.loads((tmp_path / "trace.json").read_text())["nodes"]]
    assert sum(name.startswith("dynajit [") and name.endswith("program") for name in names) == 3
    assert any(name.startswith("dynajit k0_") for name in names)


def test_the_compile_trace_is_of_events_that_nest() -> None:
    """What chrome://tracing and Perfetto ask of complete events: numbers in microseconds, one inside of the other."""
    dynajit.reset()
    dynajit.compile(program)(torch.randn(3, 4))
    record = dynajit.explain(program)(torch.randn(3, 4)).frames[0]
    events = debug.trace_events({"compile": record.spans})["traceEvents"]
    assert {"bytecode", "interpretation", "codegen"} <= {str(event["name"]) for event in events}
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)  # type: ignore[arg-type]
    assert all(event["ph"] == "X" and event["pid"] for event in events)
    for (_, end), (start, later_end) in itertools.pairwise(spans):
        assert start >= end - 1 or later_end <= end + 1


def test_profiles_name_the_kernels_of_the_cpu() -> None:
    compiled = dynajit.compile(lambda x: x.sin().exp().softmax(-1))
    compiled(torch.randn(8, 16))
    with torch.profiler.profile() as profile:
        compiled(torch.randn(8, 16))
    kernels = [event for event in profile.events() if event.name.startswith("dynajit k0_")]
    graphs = [event for event in profile.events() if event.name.startswith("dynajit [")]
    assert kernels and all(event.cpu_parent is not None for event in kernels)
    assert any(graphs[0].time_range.start <= kernel.time_range.start for kernel in kernels)


def test_a_break_in_a_loop_of_an_inlined_call_is_one_place_in_all_variants_of_the_body() -> None:
    def clipped(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for part in parts:
            if part.norm() > 1:
                part = part / 2
            found.append(part)
        return found

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return clipped([x, x[0], x[0, 0]])

    report = dynajit.explain(f)(torch.ones(2, 2))
    ((found, times),) = report.break_places
    assert times > 1 and [loc.function for loc in found.user_stack] == ["f", "clipped"]
