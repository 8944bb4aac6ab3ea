"""Rules on the shape of the code: layers point one way, torch.compile's compiler is no part, versions have an address.

And on their size: lines of functions, files and folders. Reads the sources, runs nothing of them. Each rule is a
function from a source text to a list of complaints, and is itself tested on a text that breaks it. A new folder gets
its place in `MAY_IMPORT`.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dynajit"
MAX_LINES = 800

BASE = ["_C", "exc", "config", "locks", "process_state", "torch_warnings", "torch_compat", "symbols", "nested"]
BASE += ["constants", "new_fake", "op_facts", "optimizer_steps", "wrappers", "report"]
FRONT = ["bytecode", "guards", "graph", "values", "interp", "resume"]
BACK = ["loopir", "schedule", "codegen", "runtime"]
TOP = ["backends", "verify", "kept", "capture", "api"]
TOP += ["bisection_front", "bisection", "script", "replacing", "exported"]
TOOLS = ["outcomes", "survey", "demo", "testing", "backend_contract", "__main__"]


def _chain(before: list[str], order: list[str]) -> dict[str, set[str]]:
    return {layer: {*before, *order[: i + 1]} for i, layer in enumerate(order)}


# For each layer those it may import: itself and what is below. The front (bytecode to resume) and the back (aot, and
# loopir to runtime) do not see each other; they meet in backends and capture.
MAY_IMPORT: dict[str, set[str]] = {
    **_chain([], BASE),
    **_chain(BASE, FRONT),
    **_chain(BASE, BACK),
    "aot": {*BASE, "aot"},
    "backends": {*BASE, *BACK, "aot", "backends"},
    "verify": {*BASE, "verify"},
    "kept": {*BASE, *FRONT, "backends", "kept"},
    "capture": {*BASE, *FRONT, "backends", "verify", "kept", "capture"},
    "api": {*BASE, *FRONT, "backends", "capture", "api"},
    "replacing": {*BASE, *FRONT, "backends", "capture", "api", "replacing"},
    "exported": {*BASE, *FRONT, *BACK, "backends", "capture", "api", "exported"},
    "script": {"exc", "script"},
    "outcomes": {"outcomes"},
    # The package's face and its tools see everything.
    **{
        face: {*BASE, *FRONT, *BACK, "aot", *TOP, *TOOLS, "__init__"}
        for face in ("bisection_front", "bisection", *TOOLS[1:], "__init__")
    },
}

# The rooms of dynajit/values/, lowest first. What is polyfilled is plain Python, of which models need to know nothing.
VALUES = "dynajit.values."
VALUES_ROOMS = ["polyfills", "core", "scalars", "containers", "objects", "effects", "tensors", "library"]

# What the front notes on nodes is read by the back: a record without a dependency on the rest of the front.
SHARED = "dynajit.graph.meta"
# How torch says what an operation writes, draws or shares.
FACTS = re.compile(r"nondeterministic_seeded|alias_info|is_mutable|\.endswith\(\"_\"\)")
FACTS_ADDRESS = "dynajit/op_facts.py"

RIVAL = re.compile(r"torch[./]_(dynamo|inductor)")
RIVAL_ADDRESSES = {
    "dynajit/backends/inductor.py": {"_dynamo", "_inductor"},  # the optional backend that hands a graph over by name
    "dynajit/graph/lazy_dynamo.py": {"_dynamo"},  # keeps it out of processes that do not use it
    "dynajit/backends/registry.py": {"_dynamo"},  # looks up third-party backends registered with torch
}

VERSION = re.compile(
    r"\b(version_info|hexversion|python_version|PY_VERSION_HEX|PY_M[AI][JN]OR_VERSION|TORCH_VERSION_M\w+)\b"
)
VERSION_ADDRESS = re.compile(
    r"dynajit/bytecode/(py3\d\d|target)\.py|csrc/python/compat(_since)?(_3\d\d)?\.\w+|dynajit/torch_compat\.py"
)


def layer_of(path: str) -> str:
    """The layer of a file below `dynajit/`: its folder, or its own name at the top."""
    return Path(path).relative_to("dynajit").parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) for everything imported, relative imports resolved, `from a import b` as a.b."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def upward_imports(source: str, path: str) -> list[str]:
    layer = layer_of(path)
    if layer not in MAY_IMPORT:
        return [f"{path}: the layer {layer!r} has no place in MAY_IMPORT"]
    complaints = []
    for line, name in imports(ast.parse(source), path):
        parts = name.split(".")
        if parts[0] != "dynajit" or name.startswith(SHARED):
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        target = target if target in MAY_IMPORT else "__init__"
        if target not in MAY_IMPORT[layer]:
            complaints.append(f"{path}:{line}: {layer} imports {name}, which is not below it")
    return complaints


def upward_in_values(source: str, path: str) -> list[str]:
    """Imports of one room of `values` from a later one."""
    here = path.removeprefix(VALUES.replace(".", "/")).split("/")
    if here[0] == path or len(here) == 1:
        return []
    before = VALUES_ROOMS[: VALUES_ROOMS.index(here[0]) + 1]
    return [
        f"{path}:{line}: {here[0]} imports {name}, which is not below it"
        for line, name in imports(ast.parse(source), path)
        if name.startswith(VALUES) and name.removeprefix(VALUES).split(".")[0] not in before
    ]


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute expression, or nothing."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def rival_uses(source: str, path: str) -> list[str]:
    """Imports of torch._dynamo and torch._inductor, attribute access to them, look-ups by name."""
    tree = ast.parse(source)
    found = [(line, name) for line, name in imports(tree, path)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.lineno, dotted(node)))
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("import_module", "__import__", "get"):
            found += [(node.lineno, str(arg.value)) for arg in node.args if isinstance(arg, ast.Constant)]
    allowed = RIVAL_ADDRESSES.get(path, set())
    complaints = {
        (line, match.group())
        for line, name in found
        if (match := RIVAL.match(name)) and f"_{match.group(1)}" not in allowed
    }
    return [f"{path}:{line}: uses {name}" for line, name in sorted(complaints)]


def version_tests(source: str, path: str) -> list[str]:
    """Uses of Python's or torch's version outside the files that are their address. Comments and docstrings may."""
    if VERSION_ADDRESS.fullmatch(path):
        return []
    if not path.endswith(".py"):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: "\n" * m.group().count("\n"), source, flags=re.DOTALL)
        lines = enumerate(code.splitlines(), 1)
        return [f"{path}:{n}: {m.group()}" for n, line in lines if (m := VERSION.search(line))]
    complaints = []
    for node in ast.walk(ast.parse(source)):
        name = dotted(node) if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in ("torch.__version__", "torch.version.__version__") or VERSION.fullmatch(name.split(".")[-1]):
            complaints.append(f"{path}:{node.lineno}: {name}")  # type: ignore[attr-defined]
    complaints += [
        f"{path}:{n}: {name}" for n, name in imports(ast.parse(source), path) if VERSION.fullmatch(name.split(".")[-1])
    ]
    return complaints


# The folders of csrc/, lowest first. What is in none of them (module.c) uses them all and is used by none.
ROOMS = ["python", "guards", "call", "gpu", "plan", ""]
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|__attribute__\(\(\w+(?:\([^()]*\))?\)\)\s*', re.DOTALL)
DECLARED = re.compile(
    r"^(?:extern )?(?!static|typedef|return|using|extern|#)[A-Za-z][\w:<>*&, ]*[ *&](\w+)(?:\([^;{}]*\))?;",
    re.MULTILINE,
)


def room_of(path: str) -> int:
    return ROOMS.index(path.removeprefix("csrc/").rpartition("/")[0])


def defines(code: str, name: str, linkage: str = r"(?!\s|#|static|extern [^\"])") -> bool:
    """Whether there is the function's body, or the variable, at the start of a line."""
    found = rf"^{linkage}[^;{{}}()]*\b{name}(?:\([^;{{}}]*\)\s*{{|\s*(?:=[^;]*)?;)"
    return re.search(found, code, re.MULTILINE) is not None


def native_uses(sources: dict[str, str]) -> tuple[dict[str, set[str]], list[str]]:
    """For each file those that it needs: headers it includes, files that define what it names. And what is wrong.

    What a header declares it does not need: those who call it do.
    """
    needs = {p: {f"csrc/{h}" for h in re.findall(r'^#include "([^"]+)"', t, re.MULTILINE)} for p, t in sources.items()}
    complaints = [
        f"{path} includes {header}, which is in a higher room"
        for path, headers in needs.items()
        for header in sorted(headers)
        if room_of(header) > room_of(path)
    ]
    code = {path: NO_CODE.sub(lambda m: '""' if m.group()[0] == '"' else "", text) for path, text in sources.items()}
    words = {path: set(re.findall(r"\w+", text)) for path, text in code.items()}
    declared = {(name, path) for path in code if path.endswith(".h") for name in DECLARED.findall(code[path])}
    for name, header in sorted(declared):
        makers = {path for path in code if name in words[path] and defines(code[path], name)} - {header}
        rooms = {room_of(path) for path in makers}
        if rooms != {room_of(header)}:
            complaints.append(f"{header} declares {name}, which its room does not define")
        for path in code.keys() - makers - {header}:
            if name in words[path] and not defines(code[path], name, "static "):
                needs[path] |= makers
    return needs, complaints


def in_circles(needs: dict[str, set[str]]) -> set[str]:
    """The files that reach themselves, and those between circles."""
    left = dict(needs)
    while True:
        free = {
            path
            for path, needed in left.items()
            if not needed & left.keys() or not any(path in n for n in left.values())
        }
        if not free:
            return set(left)
        left = {path: needed for path, needed in left.items() if path not in free}


def facts_of_operations(source: str, path: str) -> list[str]:
    """Facts of operations that a file finds out by itself, by torch's schemas and tags or by names."""
    lines = () if path == FACTS_ADDRESS else enumerate(source.splitlines(), 1)
    return [f"{path}:{n}: {m.group()}" for n, line in lines if (m := FACTS.search(line))]


def silent_handlers(source: str, path: str) -> list[str]:
    """`except Exception: pass` and its like."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body):
            caught = dotted(node.type) if node.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                complaints.append(f"{path}:{node.lineno}: hides every error")
    return complaints


# Functions that are longer, or have more ways through them, than a function may. The list only shrinks.
MAX_FUNCTION_LINES = 60
MAX_COMPLEXITY = 25
LONG_FUNCTIONS: set[str] = {
    "dynajit/resume/drive.py::_run_generator_parts",
}
COMPLEX_FUNCTIONS: set[str] = set()

# Names that two classes have. The list only shrinks.
DOUBLE_CLASSES: set[str] = set()

# Lines of each folder's files. A commit may raise one only with the reason in its message's body.
MAX_FOLDER_LINES = {
    "csrc": 66,
    "csrc/call": 2299,
    "csrc/gpu": 486,
    "csrc/guards": 4045,
    "csrc/plan": 6731,
    "csrc/python": 1810,
    "dynajit": 5609,
    "dynajit/aot": 11549,
    "dynajit/backends": 1840,
    "dynajit/bytecode": 4146,
    "dynajit/capture": 3341,
    "dynajit/codegen": 7125,
    "dynajit/exported": 1535,
    "dynajit/graph": 4118,
    "dynajit/guards": 2024,
    "dynajit/interp": 4915,
    "dynajit/kept": 1405,
    "dynajit/loopir": 6695,
    "dynajit/report": 2754,
    "dynajit/resume": 2317,
    "dynajit/runtime": 3619,
    "dynajit/schedule": 2473,
    "dynajit/values": 6,
    "dynajit/values/containers": 4318,
    "dynajit/values/core": 1037,
    "dynajit/values/effects": 1644,
    "dynajit/values/library": 4363,
    "dynajit/values/objects": 4253,
    "dynajit/values/polyfills": 1198,
    "dynajit/values/scalars": 1755,
    "dynajit/values/tensors": 9064,
    "dynajit/verify": 323,
}

# How often dynajit/values/ asks for a type by `isinstance`, and how often for a model of a container outside of the
# file that has it: each could be a method of the type. They only get fewer.
MAX_TYPE_TESTS = 840
MAX_CONTAINER_TESTS = 85


# How many comparisons with eager don't say how many graphs there are: they may pass where nothing was captured.
MAX_UNPINNED = 421


def unpinned(source: str) -> list[int]:
    """The lines of calls of `assert_same` without `graphs=`."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    same = (call for call in calls if dotted(call.func).split(".")[-1] == "assert_same")
    return [call.lineno for call in same if not {"graphs", None} & {keyword.arg for keyword in call.keywords}]


def type_tests(sources: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    """The file of each call of `isinstance`, and the names of the classes that it asks for."""
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and dotted(node.func) == "isinstance":
                asked = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
                yield path, {dotted(kind) for kind in asked}


def definitions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """(`prefix` and the dotted name, node) of every function and class, also of those inside of others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + node.name, node
            yield from definitions(node, f"{prefix}{node.name}.")
        else:
            yield from definitions(node, prefix)


def complexity(function: ast.AST) -> int:
    """McCabe's: one, and one for each branch, loop, handler, further operand of `and` or `or`. Of nested ones apart."""
    found = 1
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)):
            found += 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
    return found


def large_functions(sources: dict[str, str]) -> tuple[set[str], set[str]]:
    """Those that are too long, and those with too many ways through them."""
    long, winding = set(), set()
    for path, text in sources.items():
        for name, node in definitions(ast.parse(text), f"{path}::"):
            if isinstance(node, ast.ClassDef) or node.end_lineno is None:
                continue
            if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                long.add(name)
            if complexity(node) > MAX_COMPLEXITY:
                winding.add(name)
    return long, winding


# So many lines of functions in a row, or of C, may be the same in two places.
MAX_REPEATED_LINES = 5


def lines_of_functions(source: str) -> list[tuple[int, str]]:
    """(number, text) of the lines in functions' bodies, without their docstrings."""
    numbers: set[int] = set()
    for _, node in definitions(ast.parse(source), ""):
        body = [] if isinstance(node, ast.ClassDef) else node.body[bool(ast.get_docstring(node)) :]
        if body:
            numbers.update(range(body[0].lineno, (node.end_lineno or 0) + 1))
    return [(number, line) for number, line in enumerate(source.splitlines(), 1) if number in numbers]


def repeated_lines(sources: dict[str, str]) -> list[str]:
    """Where more lines in a row than may be are those of another place. Not counted: brackets alone, comments."""
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    complaints = []
    for path, source in sources.items():
        lines = lines_of_functions(source) if path.endswith(".py") else enumerate(source.splitlines(), 1)
        short = [(number, line.strip()) for number, line in lines]
        code = [(n, line) for n, line in short if len(line) > 2 and not line.startswith(("#", "/*", "* "))]
        for at in range(len(code) - MAX_REPEATED_LINES):
            run = tuple(line for _, line in code[at : at + MAX_REPEATED_LINES + 1])
            first = seen.setdefault(run, (path, code[at][0]))
            if first != (path, code[at][0]):
                complaints.append(f"{path}:{code[at][0]}: the same lines as {first[0]}:{first[1]}")
    return complaints


def double_classes(sources: dict[str, str]) -> set[str]:
    nodes = (node for path, text in sources.items() for _, node in definitions(ast.parse(text), ""))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {name for name, n in counts.items() if n > 1}


def folder_lines(sources: dict[str, str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path, text in sources.items():
        counts["/".join(path.split("/")[:-1][: 3 if "/values/" in path else 2])] += text.count("\n")
    return counts


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> dict[str, str]:
    paths = [
        p
        for folder in folders
        for p in sorted((ROOT / folder).rglob("*"))
        if p.suffix in suffixes and "build" not in p.parts
    ]
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def complaints_of(rule: object, sources: dict[str, str]) -> str:
    return "\n".join(line for path, text in sources.items() for line in rule(text, path))  # type: ignore[operator]


C_SUFFIXES = (".c", ".cpp", ".h", ".hpp", ".cc")


def test_no_upward_imports() -> None:
    assert not complaints_of(upward_imports, files("dynajit"))


def test_the_rooms_of_values_have_an_order() -> None:
    sources = files("dynajit/values")
    assert {path.split("/")[2] for path in sources} == {*VALUES_ROOMS, "__init__.py"}
    assert not complaints_of(upward_in_values, sources)
    upward = "from dynajit.values.tensors.tensor import TensorVal"
    assert len(upward_in_values(upward, "dynajit/values/effects/table.py")) == 1
    assert upward_in_values(upward, "dynajit/values/library/wrap.py") == []
    assert len(upward_in_values("from ..library import wrap", "dynajit/values/core/value.py")) == 1


def test_rival_is_no_part() -> None:
    assert not complaints_of(rival_uses, files("dynajit"))
    native = files("csrc", suffixes=C_SUFFIXES)
    assert [path for path, text in native.items() if RIVAL.search(text)] == []


def test_version_tests_have_an_address() -> None:
    assert not complaints_of(version_tests, files("dynajit") | files("csrc", suffixes=C_SUFFIXES))


def test_the_rooms_of_csrc_have_an_order() -> None:
    needs, complaints = native_uses(files("csrc", suffixes=C_SUFFIXES))
    assert complaints == []
    assert in_circles(needs) == set()
    assert "csrc/guards/guard_run.c" in needs["csrc/guards/guard_memo.c"]
    assert "csrc/gpu/gpu_generator.cpp" in needs["csrc/plan/plan_executor.cpp"]
    assert sum(map(len, needs.values())) > 100


def test_facts_of_operations_are_in_one_place() -> None:
    assert not complaints_of(facts_of_operations, files("dynajit"))


def test_no_error_is_hidden() -> None:
    assert not complaints_of(silent_handlers, files("dynajit"))


def test_files_are_short() -> None:
    sources = files("dynajit", "csrc", "tests", "benchmarks", "tools", suffixes=(".py", *C_SUFFIXES))
    assert {path: n for path, text in sources.items() if (n := text.count("\n")) > MAX_LINES} == {}


def test_functions_are_small() -> None:
    assert large_functions(files("dynajit")) == (LONG_FUNCTIONS, COMPLEX_FUNCTIONS)


def test_comparisons_say_how_many_graphs_there_are() -> None:
    sources = files("tests")
    del sources["tests/test_testing.py"]
    assert sum(len(unpinned(source)) for source in sources.values()) <= MAX_UNPINNED
    assert unpinned("assert_same(f, x)\nassert_same(f, graphs=1)\nt.assert_same(f, breaks=0)\nsame(f, **o)") == [1, 3]
    assert unpinned("assert_same(f, x, **options)") == []


def test_no_lines_stand_twice() -> None:
    assert repeated_lines(files("dynajit") | files("csrc", suffixes=C_SUFFIXES)) == []


def test_lines_that_stand_twice_are_found() -> None:
    body = "".join(f"    first({n})\n" for n in range(6))
    one, other = f'def f():\n    """Says."""\n{body}', f"x = 1\ndef g():\n    # says\n{body}    last()\n"
    assert repeated_lines({"a.py": one, "b.py": other}) == ["b.py:4: the same lines as a.py:3"]
    assert repeated_lines({"a.py": one, "b.py": other.replace("first(3)", "third()")}) == []
    assert len(repeated_lines({"a.c": body, "b.h": f"{{\n{body}}}\n"})) == 1
    outside = body.replace("    ", "")
    assert repeated_lines({"a.py": outside, "b.py": outside}) == []


def test_class_names_are_unique() -> None:
    assert double_classes(files("dynajit")) == DOUBLE_CLASSES


def test_folders_do_not_grow() -> None:
    lines = folder_lines(files("dynajit") | files("csrc", suffixes=C_SUFFIXES))
    assert lines.keys() == MAX_FOLDER_LINES.keys()
    assert {folder: n for folder, n in lines.items() if n > MAX_FOLDER_LINES[folder]} == {}


def test_types_are_asked_for_less_and_less() -> None:
    sources = files("dynajit/values")
    homes = {
        name: path
        for path, text in sources.items()
        for name, node in definitions(ast.parse(text), "")
        if "/containers/" in path and isinstance(node, ast.ClassDef) and name.endswith(("Val", "Like"))
    }
    assert {"DictVal", "SequenceVal", "SetLike"} <= homes.keys()
    found = [*type_tests(sources)]
    assert len(found) <= MAX_TYPE_TESTS
    assert sum(any(homes.get(kind, path) != path for kind in kinds) for path, kinds in found) <= MAX_CONTAINER_TESTS


def test_what_asks_for_types_is_found() -> None:
    source = "def f(x):\n    return isinstance(x, (A, b.C)) or not isinstance(x, D) or issubclass(x, E)\n"
    assert [*type_tests({"a.py": source})] == [("a.py", {"A", "b.C"}), ("a.py", {"D"})]


def test_a_large_function_and_a_double_class_are_found() -> None:
    long = "class A:\n    def f(self):\n" + "        x = 1\n" * 60
    winding = "def g(x):\n    def h():\n        return [y for y in x if y]\n" + "    if x and h: pass\n" * 13
    assert large_functions({"a.py": long, "b.py": winding}) == ({"a.py::A.f"}, {"b.py::g"})
    fine = long.replace("        x = 1\n", "", 1) + winding.replace("    if x and h: pass\n", "", 1)
    assert large_functions({"c.py": fine}) == (set(), set())
    assert double_classes({"a.py": long, "b.py": "def f():\n    class A: pass\n", "c.py": "class B: pass"}) == {"A"}


def test_the_rules_read_the_whole_package() -> None:
    assert {"dynajit/exc.py", "dynajit/report/logs.py"} <= files("dynajit").keys()
    known = set(MAY_IMPORT)
    assert {layer_of(path) for path in files("dynajit")} <= known


LOW_HEADER = "PyObject *low(int);\nextern Py_ssize_t counter;\n"
LOW_SOURCE = "Py_ssize_t counter = 1;\nPyObject *low(int n)\n{\n    return 0;\n}\n"


def test_a_circle_in_csrc_is_found() -> None:
    sources = {
        "csrc/python/low.h": LOW_HEADER + "int other(void);\n",
        "csrc/python/low.c": LOW_SOURCE + "static int f(void)\n{\n    return other();\n}\n",
        "csrc/python/other.c": '/* low */\nint other(void)\n{\n    puts("low");\n    return 1;\n}\n',
        "csrc/call/user.c": '#include "python/low.h"\nlong user(void)\n{\n    return counter;\n}\n',
    }
    needs, complaints = native_uses(sources)
    assert complaints == []
    assert needs == {
        "csrc/python/low.h": set(),
        "csrc/python/low.c": {"csrc/python/other.c"},
        "csrc/python/other.c": set(),
        "csrc/call/user.c": {"csrc/python/low.h", "csrc/python/low.c"},
    }
    assert in_circles(needs) == set()
    sources["csrc/python/other.c"] += "int more(void)\n{\n    return low(1) != 0;\n}\n"
    assert in_circles(native_uses(sources)[0]) == {"csrc/python/low.c", "csrc/python/other.c"}


@pytest.mark.parametrize(
    "sources",
    [
        {"csrc/guards/a.c": '#include "plan/b.h"\n'},
        {"csrc/guards/a.h": '#include "call/b.h"\n'},
        {"csrc/python/a.h": "PyObject *low(int);\n", "csrc/call/b.c": LOW_SOURCE},
    ],
)
def test_a_higher_room_is_found(sources: dict[str, str]) -> None:
    assert len(native_uses(sources)[1]) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("dynajit/exc.py", "import dynajit.config"),
        ("dynajit/report/logs.py", "from dynajit.guards import source"),
        ("dynajit/report/logs.py", "from ..guards.source import Source"),
        ("dynajit/guards/source.py", "def f():\n    from dynajit import capture"),
        ("dynajit/graph/builder.py", "from dynajit.values.core.value import Value"),
        ("dynajit/values/core/value.py", "if TYPE_CHECKING:\n    from dynajit.interp.machine import Machine"),
        ("dynajit/resume/plan.py", "import dynajit.codegen.c"),
        ("dynajit/codegen/c/printer.py", "from dynajit.bytecode import decode"),
        ("dynajit/loopir/nodes.py", "from dynajit.codegen import compile_graph"),
        ("dynajit/backends/eager.py", "import dynajit.capture.frame"),
        ("dynajit/capture/frame.py", "from dynajit import compile"),
        ("dynajit/capture/frame.py", "import dynajit"),
        ("dynajit/new_folder/x.py", ""),
    ],
)
def test_upward_import_is_found(path: str, source: str) -> None:
    assert len(upward_imports(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "dynajit/guards/source.py",
            "from dynajit import _C\nfrom dynajit.bytecode.assemble import Emitter\nimport torch",
        ),
        ("dynajit/guards/source.py", "from . import guard\nfrom .guard import Guard\nfrom ..report import logs"),
        (
            "dynajit/capture/frame.py",
            "from dynajit.resume import plan\nfrom dynajit.backends.registry import lookup_backend",
        ),
        ("dynajit/backends/codegen.py", "from dynajit.codegen import compile_graph\nfrom dynajit.aot import joint"),
        ("dynajit/__main__.py", "import dynajit\nfrom dynajit.api import compile"),
    ],
)
def test_downward_import_is_fine(path: str, source: str) -> None:
    assert upward_imports(source, path) == []


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("dynajit/api.py", "import torch._dynamo", 1),
        ("dynajit/api.py", "from torch._inductor import config", 1),
        ("dynajit/api.py", "from torch import _dynamo", 1),
        ("dynajit/api.py", "import torch\ntorch._dynamo.reset()", 1),
        ("dynajit/api.py", "importlib.import_module('torch._dynamo.utils')", 1),
        ("dynajit/backends/registry.py", "import torch._inductor", 1),
        ("dynajit/backends/inductor.py", "from torch._inductor.compile_fx import compile_fx", 0),
        ("dynajit/api.py", "sys.modules.get('torch._dynamo')", 1),
        ("dynajit/api.py", '"""Like torch._dynamo.reset."""\nNOT_TRACED = ("torch._dynamo",)', 0),
    ],
)
def test_rival_use_is_found(path: str, source: str, count: int) -> None:
    assert len(rival_uses(source, path)) == count


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("dynajit/api.py", "import sys\nif sys.version_info >= (3, 12): pass", 1),
        ("dynajit/api.py", "from sys import hexversion", 1),
        ("dynajit/api.py", "import torch\nnew = torch.__version__ > '2.12'", 1),
        ("dynajit/api.py", "import platform\nplatform.python_version()", 1),
        ("dynajit/bytecode/py312.py", "import sys\nsys.version_info", 0),
        ("dynajit/torch_compat.py", "import torch\ntorch.__version__", 0),
        ("dynajit/api.py", "# sys.version_info is asked for in bytecode/\nx = 'torch.__version__'", 0),
        ("csrc/call/frame_hook.c", "#if PY_VERSION_HEX >= 0x030C0000\n", 1),
        ("csrc/call/frame_hook.c", "/* PY_VERSION_HEX\n */ // TORCH_VERSION_MAJOR\n", 0),
        ("csrc/python/compat_312.c", "#if PY_VERSION_HEX >= 0x030C0000\n", 0),
    ],
)
def test_version_test_is_found(path: str, source: str, count: int) -> None:
    assert len(version_tests(source, path)) == count


def test_own_facts_are_found() -> None:
    assert len(facts_of_operations('writes = name.endswith("_")\nx = argument.alias_info', "dynajit/aot/joint.py")) == 2
    assert facts_of_operations("argument.alias_info", FACTS_ADDRESS) == []


def test_silent_handler_is_found() -> None:
    assert len(silent_handlers("try:\n    f()\nexcept Exception:\n    pass", "x.py")) == 1
    assert silent_handlers("try:\n    f()\nexcept KeyError:\n    pass", "x.py") == []
