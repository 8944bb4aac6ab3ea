"""Continuations: the rest of a function, entered at any instruction, does what the function does."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bytecode_harness import broken_at, layout, plain, rebuilt, stack_kinds, storable
from bytecode_samples import SAMPLES, Derived, make_adder

from dynajit.bytecode import build_continuation, build_copy, cells_live, decode, live_before, pretty, regions

CASES = [pytest.param(function, arguments, id=plain(function).__qualname__) for function, arguments in SAMPLES]


def outcome(function: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    """What a call gives: its result, or the exception's type and arguments."""
    try:
        return "returned", function(*args)
    except Exception as error:
        return type(error).__name__, error.args


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_from_the_entry(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> None:
    for args in arguments:
        assert outcome(rebuilt(function), *args) == outcome(function, *args)


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_copies(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> None:
    original = plain(function)
    code = build_copy(decode(original.__code__))
    copy = types.FunctionType(code, original.__globals__)
    for args in arguments:
        given, cells = layout(function, *args)
        assert outcome(copy, *given, *cells) == outcome(function, *args)


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_from_every_instruction(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> None:
    code = decode(plain(function).__code__)
    kinds = stack_kinds(code)
    hidden = {i.index for i in code.instrs if i.op == "LOAD_FAST_AND_CLEAR"}
    for index, stack in sorted(kinds.items()):
        # what LOAD_FAST_AND_CLEAR leaves may be a NULL: whether it is only the run shows
        if any(start < index for start in hidden):
            break
        broken = broken_at(function, index, stack)
        for args in arguments:
            assert outcome(broken, *args) == outcome(function, *args), (code.instrs[index], stack)


STDLIB = {
    "textwrap": lambda m: [
        m.wrap("hello world this is text " * 9, 21),
        m.dedent("   a\n     b\n"),
        m.shorten("many words here", 9),
    ],
    "difflib": lambda m: [
        list(m.unified_diff(["a", "b", "c", "d"], ["a", "c", "d", "e"])),
        m.get_close_matches("appel", ["ape", "apple"]),
    ],
    "json.encoder": lambda m: [
        m.JSONEncoder(indent=2).encode({"a": [1, 2.5, None, True, "x\n"], "b": {}}),
        m.py_encode_basestring('é"'),
    ],
    "fractions": lambda m: [
        str(m.Fraction(3, 7) ** 2 + m.Fraction("0.125")),
        m.Fraction(22, 7).limit_denominator(5),
        hash(m.Fraction(1, 3)),
    ],
    "statistics": lambda m: [
        m.mean([1, 2, 4]),
        m.stdev([1.5, 2.5, 9]),
        m.median([3, 1, 2]),
        m.quantiles([1, 2, 3, 4, 5]),
    ],
    "shlex": lambda m: [m.split('a \'b c\' "d\\"e" # f', comments=True), m.quote("x y"), m.join(["a", "b c"])],
    "heapq": lambda m: [
        list(m.merge([1, 4], [2, 3])),
        m.nsmallest(2, [5, 1, 3]),
        m.nlargest(2, [5, 1, 3], key=lambda v: -v),
    ],
    "configparser": lambda m: [config(m)],
    "argparse": lambda m: [arguments(m)],
    "ast": lambda m: [
        m.unparse(m.parse("def f(a, *b, c=1):\n  for x in a: yield (x if c else [y async for y in b])\n")),
        m.literal_eval("{1: [2]}"),
    ],
    "calendar": lambda m: [m.TextCalendar().formatmonth(2024, 2), m.isleap(1900), m.monthrange(2023, 2)],
    "colorsys": lambda m: [m.rgb_to_hls(0.2, 0.4, 0.6), m.hsv_to_rgb(0.3, 0.5, 0.7)],
    "pprint": lambda m: [m.pformat({"a": list(range(30)), "b": ("x" * 90, {1, 2})}, width=40)],
    "string": lambda m: [
        m.Template("$a ${b} $$").substitute(a=1, b=2),
        m.Formatter().format("{0!r:>5} {k[0]}", 1, k="xy"),
        m.capwords("a bc"),
    ],
    "html.parser": lambda m: [html(m)],
    "urllib.parse": lambda m: [
        m.urlsplit("http://u@h:80/p;q?x=1&y=2#f"),
        m.parse_qs("a=1&a=2&b="),
        m.urlencode({"a": "b c"}),
        m.urljoin("http://a/b/c", "../d"),
    ],
    "copy": lambda m: [m.deepcopy({"a": [1, {2: (3, [4])}]}), m.copy([1, 2])],
    "graphlib": lambda m: [list(m.TopologicalSorter({"d": {"c"}, "c": {"b"}, "b": {"a"}, "a": ()}).static_order())],
    "ipaddress": lambda m: [
        str(m.ip_network("10.0.0.0/30")),
        [str(h) for h in m.ip_network("10.0.0.0/30").hosts()],
        str(m.ip_address("::1")),
    ],
    "tokenize": lambda m: [len(list(m.generate_tokens(iter(["x = (1 +\n", "  2)\n"]).__next__)))],
    "enum": lambda m: [list(m.Enum("Color", "RED GREEN")), m.Flag("F", "A B").A.value],
    "dataclasses": lambda m: [repr(m.make_dataclass("D", [("a", int), ("b", list, m.field(default_factory=list))])(1))],
    "_pydecimal": lambda m: [str(m.Decimal("1.25") ** 3 / 7), str(m.Decimal(2).sqrt()), f"{m.Decimal('1234.5'):,.2f}"],
}


def config(m: types.ModuleType) -> Any:
    parser = m.ConfigParser()
    parser.read_string("[a]\nx = 1\ny = %(x)s2\n[b]\nz: yes\n")
    return parser.get("a", "y"), parser.getboolean("b", "z"), parser.sections()


def arguments(m: types.ModuleType) -> Any:
    parser = m.ArgumentParser(prog="p")
    parser.add_argument("--n", type=int, default=3, choices=[3, 4])
    parser.add_argument("rest", nargs="*")
    return vars(parser.parse_args(["--n", "4", "a", "b"])), parser.format_help()


def html(m: types.ModuleType) -> Any:
    seen: list[Any] = []

    class Parser(m.HTMLParser):  # type: ignore[misc, name-defined]
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            seen.append((tag, attrs))

        def handle_data(self, data: str) -> None:
            seen.append(data)

    Parser().feed("<a href='x&amp;y'>t<br/>u</a><!-- c -->")
    return seen


def copy_of(name: str) -> types.ModuleType:
    """A second copy of a stdlib module."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None and spec.loader is not None
    again = importlib.util.spec_from_file_location(f"{name}_again", spec.origin)
    assert again is not None and again.loader is not None
    module = importlib.util.module_from_spec(again)
    sys.modules[again.name] = module  # dataclasses and enum look modules up
    again.loader.exec_module(module)
    return module


def is_plain(value: Any, module: types.ModuleType) -> bool:
    """Is it a function of this module that has a continuation?"""
    if not isinstance(value, types.FunctionType) or inspect.unwrap(value) is not value:
        return False
    return value.__globals__ is vars(module) and decode(value.__code__).refusal is None


def rebuild_functions(owner: Any, module: types.ModuleType) -> int:
    """Replace each plain function of a module or class by one that runs as a continuation of its own entry."""
    count = 0
    for name, value in list(vars(owner).items()):
        if isinstance(value, type) and value.__qualname__ == f"{getattr(owner, '__qualname__', '')}.{name}".lstrip("."):
            count += rebuild_functions(value, module)
        if is_plain(value, module) and name != "__new__":
            wrapper = rebuilt(value)
            wrapper.__name__ = value.__name__
            setattr(owner, name, wrapper)
            count += 1
    return count


@pytest.mark.parametrize("name", STDLIB)
def test_stdlib_modules_made_of_continuations(name: str) -> None:
    use = STDLIB[name]
    expected = repr(use(copy_of(name)))
    module = copy_of(name)
    assert rebuild_functions(module, module) > 0
    try:
        assert repr(use(module)) == expected
    finally:
        del sys.modules[f"{name}_again"]


@pytest.mark.parametrize("folder", ["json", "asyncio"])
def test_stdlib_functions_have_continuations_that_decode(folder: str) -> None:
    """Built and looked at, not run: stack depths agree on all paths, and the new code has regions and liveness of its
    own.
    """
    for file in sorted((Path(sysconfig.get_path("stdlib")) / folder).glob("*.py")):
        pending = [compile(file.read_text("utf-8"), str(file), "exec")]
        while pending:
            user = pending.pop()
            pending += [constant for constant in user.co_consts if isinstance(constant, types.CodeType)]
            code = decode(user)
            if code.refusal is not None:
                continue
            kinds = stack_kinds(code)
            for index in sorted(kinds)[:: max(1, len(kinds) // 3)]:
                values = sorted(live_before(code)[index] - set(code.cellvars))
                built = build_continuation(code, index, storable(kinds[index]), values, sorted(cells_live(code, index)))
                again = decode(built)
                assert again.refusal is None and len(regions(again)) == len(again) == len(live_before(again))
                stack_kinds(again)


def test_names_lines_and_traceback() -> None:
    def fails(a: int) -> int:
        b = a + 1
        return b // 0  # the line that raises

    code = decode(fails.__code__)
    division = next(i.index for i in code.instrs if i.op == "BINARY_OP" and i.arg == "//")
    built = build_continuation(code, division, ["value", "value"], [], [])
    assert (built.co_name, built.co_qualname, built.co_filename) == ("fails", fails.__qualname__, __file__)
    with pytest.raises(ZeroDivisionError) as caught:
        types.FunctionType(built, globals())(1, 0)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert frame.line is not None and "the line that raises" in frame.line
    assert frame.colno is not None and frame.line  # columns survive as well
    assert frame.lineno == fails.__code__.co_firstlineno + 2


def test_a_variable_of_the_name_of_a_slot() -> None:
    def user(stack0: int, b: int) -> int:
        return b + stack0

    code = decode(user.__code__)
    addition = next(i.index for i in code.instrs if i.op == "LOAD_FAST" and i.arg == "stack0")
    built = build_continuation(code, addition, ["value"], ["stack0"], [])
    assert types.FunctionType(built, {})(30, 4) == 34


def test_operands_are_let_go() -> None:
    """After the operand has been consumed nothing in the continuation's frame holds it any more."""

    def user(consume: Any, alive: Any, x: Any) -> bool:
        consume(x)
        return alive()

    code = decode(user.__code__)
    call = next(i.index for i in code.instrs if i.op == "CALL")
    body = types.FunctionType(build_continuation(code, call, storable(stack_kinds(code)[call]), ["alive"], []), {})
    frames: list[dict[str, Any]] = []

    def alive() -> bool:
        frames.append(sys._getframe(1).f_locals)
        return True

    assert body(id, object(), alive) is True
    assert list(frames[0]) == ["alive"]


def test_shadowed_super_stays_what_it_is() -> None:
    function = Derived.value
    namespace = {**function.__globals__, "super": lambda: types.SimpleNamespace(value=lambda c: c * 3, a_property=0)}
    shadowed = types.FunctionType(function.__code__, namespace, closure=function.__closure__)
    assert rebuilt(shadowed)(Derived(1), 5) == 31


def test_super_in_the_middle_of_the_call() -> None:
    function = Derived(3).value
    code = decode(plain(function).__code__)
    call = next(i for i in code.instrs if (i.op == "CALL" and i.arg == (0, ())) or i.op == "LOAD_SUPER_ATTR")
    stack = stack_kinds(code)[call.index]
    assert broken_at(function, call.index, stack)(4) == function(4)


def test_refusals() -> None:
    def generator() -> Any:
        yield 1

    with pytest.raises(ValueError, match="generator"):
        build_continuation(decode(generator.__code__), 0, [], [], [])
    with pytest.raises(ValueError, match="module body"):
        build_continuation(decode(compile("x = 1", "f", "exec")), 0, [], [], [])
    adder = make_adder(1)
    code = decode(adder.__code__)
    with pytest.raises(ValueError, match="needs the cells last, n"):
        build_continuation(code, code.entry, [], ["v"], [])
    with pytest.raises(ValueError, match="no cell or free variable nonsense"):
        build_continuation(code, code.entry, [], ["v"], ["last", "n", "nonsense"])


def test_unbound_locals_stay_unbound() -> None:
    def user(flag: bool) -> int:
        if flag:
            value = 1
        return value

    code = decode(user.__code__)
    last = max(i.index for i in code.instrs if i.op in ("LOAD_FAST", "LOAD_FAST_CHECK"))
    body = types.FunctionType(build_continuation(code, last, [], [], []), {})
    with pytest.raises(UnboundLocalError, match="value"):
        body()


def test_continuation_of_a_continuation() -> None:
    def user(a: int, n: int) -> int:
        total = a
        for i in range(n):
            total += i
        return total * 2

    code = decode(user.__code__)
    once = build_continuation(code, code.entry, [], ["a", "n"], [])
    decoded = decode(once)
    assert decoded.params == ("a", "n")
    twice = build_continuation(decoded, decoded.entry, [], ["a", "n"], [])
    assert types.FunctionType(twice, {})(5, 4) == user(5, 4)


def test_pretty_names_function_and_place() -> None:
    text = pretty(make_adder.__code__)
    assert "make_adder(n (cell))" not in text.split("\n")[1]
    assert (
        text.startswith("make_adder(")
        and f"line {make_adder.__code__.co_firstlineno}" in text
        and "RETURN_VALUE" in text
    )
