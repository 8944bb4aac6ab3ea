"""Records reach listeners of the same thread; counters and the explain report add them up."""

import json
import threading

import pytest

from dynajit.report import records
from dynajit.report.counters import Counters, counters
from dynajit.report.explain import ExplainReport
from dynajit.report.records import BreakRecord, CompileRecord, FrameLoc, GraphRecord, GuardRecord


def sample() -> list[CompileRecord]:
    loc = FrameLoc(__file__, 1, 1, 0, 3, "f")
    brk = BreakRecord("call", "print() was called", "remove the print", [loc], loc.render())
    first = CompileRecord(
        "[0/0]",
        "f",
        "m.py",
        1,
        graphs=[GraphRecord("[0/0]", 3, "G0", ("m.py", 2), ("m.py", 4), "print() was called")],
        breaks=[brk],
        guards=[GuardRecord("type is Tensor", "L['x']", loc), GuardRecord("== 3", "L['n']")],
        phases={"interpretation": 0.5, "backend": 0.25},
    )
    second = CompileRecord(
        "[1/0]", "f", "m.py", 4, graphs=[GraphRecord("[1/0]", 2, "G1")], phases={"interpretation": 0.5, "extra": 1.0}
    )
    skipped = CompileRecord("[2/0]", "g", "m.py", 9, recompile_reason="L['n'] == 3", skipped="recompile_limit reached")
    return [first, second, skipped]


def test_listen_sees_only_its_own_thread() -> None:
    seen: list[CompileRecord] = []
    with records.listen(seen.append):
        first, second, _ = sample()
        records.publish(first)
        thread = threading.Thread(target=records.publish, args=(second,))
        thread.start()
        thread.join()
    records.publish(second)
    assert seen == [first]


def test_listeners_nest_and_are_removed_after_an_error() -> None:
    outer: list[CompileRecord] = []
    inner: list[CompileRecord] = []
    record = sample()[0]
    with records.listen(outer.append):
        with pytest.raises(ZeroDivisionError), records.listen(inner.append):
            records.publish(record)
            raise ZeroDivisionError
        records.publish(record)
    assert (len(outer), len(inner)) == (2, 1)


def test_global_counters_follow_publish() -> None:
    counters.clear()
    for record in sample():
        records.publish(record)
    assert counters["graph_breaks"]["call"] == 1
    assert counters["stats"]["unique_graphs"] == 2
    assert counters["frames"] == {"total": 3, "ok": 2, "skipped": 1}
    flat = counters()
    assert flat == {"frames": 3, "unique_graphs": 2, "calls_captured": 5, "graph_break_events": 1, "recompiles": 1}
    assert "graph_breaks" in dict(counters)
    counters.clear()
    assert counters()["unique_graphs"] == 0


def test_counters_make_missing_groups() -> None:
    own = Counters()
    assert own["nothing"]["yet"] == 0
    own["mine"]["x"] += 2
    assert own["mine"]["x"] == 2


def test_explain_report_totals() -> None:
    report = ExplainReport(sample())
    assert (report.graph_count, report.graph_break_count, report.op_count, report.guard_count) == (2, 1, 5, 2)
    assert report.graphs == ["G0", "G1"]
    (brk,) = report.break_reasons
    assert brk.kind == "call" and brk.reason == "print() was called" and brk.user_stack[0].function == "f"
    assert report.phases == {"interpretation": 1.0, "backend": 0.25, "extra": 1.0}
    assert list(report.phases)[-1] == "extra"
    assert report.recompile_reasons == ["L['n'] == 3"]


def test_explain_report_reads_well() -> None:
    text = str(ExplainReport(sample()))
    assert text.startswith("2 graphs, 1 graph break, 5 operations, 2 guards\n")
    for part in (
        "print() was called [call]",
        "^^^",
        "What to do: remove the print",
        "m.py:2 to 4",
        "recompile_limit reached",
    ):
        assert part in text, part
    assert str(ExplainReport([])) == "0 graphs, 0 graph breaks, 0 operations, 0 guards"


def test_explain_report_as_data() -> None:
    data = json.loads(json.dumps(ExplainReport(sample()).to_dict()))
    assert data["graph_count"] == 2 and data["breaks"][0]["kind"] == "call"
    assert data["frames"][2]["skipped"] == "recompile_limit reached"


def test_lifted_break_says_so() -> None:
    text = BreakRecord("loop", "a break inside a for loop", lifted_from="print() was called").render()
    assert "because of: print() was called" in text
