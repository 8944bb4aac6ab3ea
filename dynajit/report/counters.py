"""Counts over the life of the process: `dynajit.counters`.

In: every published `CompileRecord` (nothing else has to be called). Out: a dictionary of counters, read as
`counters["graph_breaks"]["<kind>"]` or flat by calling it: `counters()["unique_graphs"]`.

    frames         total (looked at), ok (compiled), skipped
    stats          unique_graphs, calls_captured (operations in them), guards
    graph_breaks   by kind
    recompiles     by the guard that failed
    kept           variants loaded, missed and written (config.keep_variants), and why others were not
    remote         entries of the remote cache: hits, misses, refused (not signed), written, waited for, and failures
    as_captured    graphs that run operator by operator, by the reason
"""

from collections import Counter

from dynajit.locks import process_lock
from dynajit.report import records


class Counters(dict[str, Counter[str]]):
    """A dictionary of `collections.Counter` that makes a missing one, and is callable."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = process_lock()

    def __missing__(self, group: str) -> Counter[str]:
        return self.setdefault(group, Counter())

    def __call__(self) -> dict[str, int]:
        """The totals, flat."""
        with self._lock:
            return {
                "frames": self["frames"]["total"],
                "unique_graphs": self["stats"]["unique_graphs"],
                "calls_captured": self["stats"]["calls_captured"],
                "graph_break_events": sum(self["graph_breaks"].values()),
                "recompiles": sum(self["recompiles"].values()),
            }

    def clear(self) -> None:
        """Start again from nothing."""
        with self._lock:
            super().clear()

    def count(self, group: str, name: str) -> None:
        """Count one, in any thread."""
        with self._lock:
            self[group][name] += 1

    def add(self, record: records.CompileRecord) -> None:
        """Count one capture."""
        with self._lock:
            self["frames"]["total"] += 1
            self["frames"]["skipped" if record.skipped else "ok"] += 1
            self["stats"]["unique_graphs"] += len(record.graphs)
            self["stats"]["calls_captured"] += sum(graph.op_count for graph in record.graphs)
            self["stats"]["guards"] += len(record.guards)
            for brk in record.breaks:
                self["graph_breaks"][brk.kind] += 1
            if record.recompile_reason:
                self["recompiles"][record.recompile_reason] += 1


counters = Counters()
records.subscribe(counters.add)
