"""Programs about loops, branches, match, exceptions, contexts, walrus, constants, strings and formatting.

PYTEST_DONT_REWRITE: the assertions here are part of the programs.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


@cases(x, 5)
def loops(x: Tensor, n: int) -> Any:
    total = x
    for i in range(n):
        if i == 1:
            continue
        if i == 4:
            break
        total = total + i
    else:
        total = total * 100
    for _ in ():
        pass
    else:
        total = total + 1
    while n > 0:
        n -= 2
        total = total - n
        if n == 1:
            break
    else:
        total = total * 3
    return total, n, i


@cases(x, "mul", None)
def branches(x: Tensor, op: str, extra: Any) -> Any:
    if op == "add":
        y = x + 1
    elif op == "mul" and extra is None:
        y = x * 2
    else:
        y = x
    if extra:
        y = y + extra
    if (not extra and len(op) == 3) or op is None:
        y = y - 1
    return y if x.dim() == 2 else None


@cases(x)
def walrus(x: Tensor) -> Any:
    if (n := len(x)) > 1:
        x = x + n
    items = [y := 1, y**2, (z := y + 2)]
    while (n := n - 1) >= 0:
        x = x * 2
    return x, items, n, z, [last := i for i in range(3)], last


class P:
    __match_args__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a = a
        self.b = b


@cases(x)
def matching(x: Tensor) -> Any:
    def kind(v: Any) -> Any:
        match v:
            case torch.Tensor():
                return v + 1
            case 0 | 1:
                return "small"
            case bool() | None:
                return "bool or none"
            case int(n) if n > 100:
                return "big", n
            case int():
                return "int"
            case str() as s:
                return s + "!"
            case []:
                return "empty"
            case [one]:
                return "one", one
            case [first, *middle, last]:
                return first, middle, last
            case {"k": value, **rest}:
                return value, rest
            case {}:
                return "mapping"
            case P(1, b=b):
                return "p1", b
            case P(a, P(c, d)):
                return "nested", a, c, d
            case float(1.5) | -2.5:
                return "floats"
            case _:
                return "other"

    values = [
        0,
        5,
        101,
        None,
        "s",
        [],
        [1],
        [1, 2, 3, 4],
        (1, 2),
        {"k": 1, "z": 2},
        {"q": 1},
        P(1, 2),
        P(2, P(3, 4)),
        P(2, 2),
        x,
        1.5,
        -2.5,
        {1},
    ]
    return [kind(v) for v in values]


@cases(x)
def try_except(x: Tensor) -> Any:
    log: list[Any] = []
    for value in (1, 0, "a", None, [1]):
        try:
            log.append(10 / value)  # type: ignore[operator]
        except ZeroDivisionError as error:
            log.append(str(error))
        except (TypeError, ValueError) as error:
            log.append(type(error).__name__)
        else:
            log.append("else")
        finally:
            log.append("finally")
    return log, x + len(log)


@cases(x)
def exceptions_of_the_user(x: Tensor) -> Any:
    class_log: list[Any] = []

    def risky(n: int) -> int:
        if n == 0:
            raise Problem("zero", code=7)
        if n == 1:
            raise KeyError("k")
        if n == 2:
            raise ValueError
        return n

    for n in range(4):
        try:
            class_log.append(risky(n))
        except Problem as error:
            class_log.append((error.code, error.args, str(error)))
        except LookupError as error:
            class_log.append((str(error), repr(error), error.args))
        except Exception as error:
            class_log.append((str(error), error.args, isinstance(error, ValueError)))
    return class_log, x + 1


class Problem(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Plain(RuntimeError):
    pass


@cases(x)
def chained_exceptions(x: Tensor) -> Any:
    log: list[Any] = []
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise Plain("second", 2) from error
    except Plain as error:
        log += [
            error.args,
            type(error.__cause__).__name__,
            error.__cause__ is error.__context__,
            error.__suppress_context__,
        ]
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("other") from None
    except ValueError as error:
        log += [error.__cause__, error.__suppress_context__, type(error.__context__).__name__]
    try:
        try:
            raise KeyError("again")
        except KeyError:
            raise
    except KeyError as error:
        log.append(error.args)
    return log, x + 1


@cases(x)
def finally_order(x: Tensor) -> Any:
    log: list[Any] = []

    def f(n: int) -> Any:
        try:
            log.append("try")
            if n == 0:
                return "returned"
            if n == 1:
                raise ValueError("v")
            log.append("end")
        except ValueError:
            log.append("except")
            return "handled"
        finally:
            log.append("finally")
            if n == 3:
                return "overridden"  # noqa: B012
        return "fell"

    results = [f(n) for n in range(4)]
    for i in range(3):
        try:
            if i == 0:
                continue
            if i == 1:
                break
        finally:
            log.append(i)
    return results, log, x + 1


@cases(x, graphs=None, breaks=None)
def uncaught_exception(x: Tensor) -> Any:
    y = x + 1
    if y.dim() == 2:
        raise Plain("bad shape", 3)
    return y


@cases(x, [1], graphs=None, breaks=None)
def exception_after_mutation(x: Tensor, log: list[Any]) -> Any:
    log.append(x + 1)
    log[0] = "changed"
    return {}["missing"]


@cases(x, graphs=None, breaks=None)
def exception_in_called_function(x: Tensor) -> Any:
    def inner(v: Any) -> Any:
        z = v * 2
        return z + [1][5]

    return inner(x + 1)


@cases(x)
def assertions(x: Tensor) -> Any:
    assert x.dim() == 2, "two dimensions"
    assert x.shape[0]
    try:
        assert x.dim() == 3, f"got {x.dim()}"
    except AssertionError as error:
        text = str(error)
    return text, x + 1


@cases(x, graphs=None, breaks=None)
def failing_assertion(x: Tensor) -> Any:
    y = x * 2
    assert y.dim() == 3, f"got {y.dim()}"
    return y


class Managed:
    def __init__(self, log: list[Any], swallow: bool = False) -> None:
        self.log = log
        self.swallow = swallow

    def __enter__(self) -> Any:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, tb: Any) -> bool:
        self.log.append(("exit", kind.__name__ if kind else None, str(error)))
        return self.swallow


@contextlib.contextmanager
def managed(log: list[Any]) -> Iterator[int]:
    log.append("before")
    try:
        yield 5
    except KeyError as error:
        log.append(error.args[0])
    finally:
        log.append("after")


@cases(x, [], repeat=1)
def with_statements(x: Tensor, log: list[Any]) -> Any:
    with Managed(log) as m, managed(log) as five:
        x = x + five
        log.append(m is not None)
    with Managed(log, swallow=True):
        raise ValueError("swallowed")
    with managed(log):
        raise KeyError("handled")
    try:
        with Managed(log):
            raise ValueError("passed on")
    except ValueError as error:
        log.append(str(error))
    for i in range(3):
        with Managed(log):
            if i == 1:
                break
    return x, i


@cases(x)
def contextlib_helpers(x: Tensor) -> Any:
    with contextlib.suppress(KeyError):
        {}["a"]
    with contextlib.nullcontext(3) as n:
        x = x + n
    with contextlib.ExitStack() as stack:
        log: list[Any] = []
        stack.enter_context(managed(log))
        stack.callback(log.append, "callback")
    return x, log


@cases(x.clone().requires_grad_())
def grad_modes(x: Tensor) -> Any:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        flag = torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        c = x * 4
    return a, b, c, x * 5, a.requires_grad, b.requires_grad, flag


@torch.no_grad()
def without_grad(x: Tensor) -> Tensor:
    return x * 2


@cases(x.clone().requires_grad_())
def grad_mode_decorator(x: Tensor) -> Any:
    y = without_grad(x)
    return y, y.requires_grad, (x * 2).requires_grad


@cases(x)
def autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        with torch.autocast("cpu", enabled=False):
            z = x @ x.T
    return y, z, x @ x.T


@cases(x)
def autocast_of_an_exception(x: Tensor) -> Any:
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            raise KeyError("x")
    except KeyError:
        pass
    return x @ x.T, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


@cases(x, 7, 2.5, "name")
def strings(x: Tensor, n: int, f: float, s: str) -> Any:
    return (
        f"{n}-{f:.3f}-{s!r}-{s:>8}-{n:05d}-{n!s:^5}|{f:{n}.{2}f}",
        "%s %d %.2f" % (s, n, f),
        "%(a)s" % {"a": n},
        "{0} {k} {0}".format(n, k=s),  # noqa: UP032
        s.upper(),
        s.split("a"),
        ",".join(["a", s]),
        s.replace("n", "m"),
        s.startswith(("x", "n")),
        s[1:3],
        s[::-1],
        s * 2,
        s + "x",
        "am" in s,
        s.encode(),
        b"ab"[0],
        b"ab" + b"c",
        len(s),
        s.find("m"),
        s.strip("n"),
        s.partition("a"),
        "A".lower() == "a",
        s.isidentifier(),
        s.title(),
        s.zfill(6),
        s.center(8, "*"),
        "a\nb".splitlines(),
        str(n),
        repr(s),
        ascii("é"),
        chr(97),
        ord("a"),
        hex(255),
        bin(5),
        format(n, "x"),
        sorted("hello"),
        max("abc"),
        "".join(reversed(s)),
        s < "z",
        [c for c in s],
        x + n,
    )


@cases(x)
def text_of_values(x: Tensor) -> Any:
    return (
        str([1, "a", None]),
        repr({"a": (1, 2.5)}),
        f"{[1, 2]} {(3,)} {x.shape} {x.dtype} {x.device}",
        str(torch.float32),
        f"{x.shape[0]}",
        str({1}),
        str(range(3)),
        x + 1,
    )


@cases(x)
def constants(x: Tensor) -> Any:
    return (
        1,
        1.5,
        2j,
        "s",
        b"b",
        None,
        True,
        ...,
        (1, (2, "x")),
        frozenset({1}),
        10**30,
        float("inf"),
        -0.0,
        x * 0.5,
        x + 2,
        x[..., 0],
        math.pi,
        slice(1, 2),
        NotImplemented,
    )


@cases(x, float("nan"), -0.0, float("inf"))
def float_arguments(x: Tensor, nan: float, zero: float, inf: float) -> Any:
    return (
        nan != nan,
        zero == 0.0,
        math.copysign(1, zero),
        x + zero,
        inf > 1e308,
        math.isnan(nan),
        [nan] == [nan],
        nan in [nan],
        1 / inf,
        x * nan,
    )


@cases(x, 7)
def integer_arithmetic(x: Tensor, n: int) -> Any:
    return (
        n + 1,
        n - 10,
        n * 2,
        n / 2,
        n // 2,
        n % 3,
        -n // 2,
        -n % 3,
        n**2,
        n**-1,
        2**0.5,
        n & 3,
        n | 8,
        n ^ 1,
        n << 2,
        n >> 1,
        ~n,
        -n,
        +n,
        not n,
        n == 7.0,
        n != 7,
        int(7.9),
        float(3),
        complex(1, 2),
        round(2.5),
        abs(-2.5),
        bool(0),
        int("12"),
        n.bit_length(),
        (2.5).is_integer(),
        (0.1).hex(),
        x * n,
    )


@cases(x)
def nested_functions_and_loops(x: Tensor) -> Any:
    def step(t: Tensor, depth: int) -> Tensor:
        for i in range(depth):
            t = step(t, depth - 1) + i
        return t

    return step(x, 3)


@cases(x)
def chained_comparisons(x: Tensor) -> Any:
    calls = []

    def v(n: int) -> int:
        calls.append(n)
        return n

    return v(1) < v(2) < v(3), v(3) < v(1) < v(9), v(1) == v(1) != v(2), calls, x + 1


@cases(x)
def deletion(x: Tensor) -> Any:
    a = 1
    del a
    try:
        a  # type: ignore[used-before-def] # noqa: B018, F821
    except UnboundLocalError as error:
        text = str(error)
    items, d = [1, 2, 3, 4], {"a": 1}
    del items[1], d["a"]
    del items[:1]
    return text, items, d, x + 1


@cases(x, 3)
def deleting_parameters(x: Tensor, n: int) -> Any:
    y = x + n
    del n
    try:
        return n
    except NameError as error:
        return y, str(error)


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("neither")


@cases(x, NoTruth())
def truth_that_raises(x: Tensor, flag: Any) -> Any:
    try:
        if flag:
            return x
    except ValueError as error:
        return x + 1, str(error)
    return x + 2


@cases(x)
def exception_scoping(x: Tensor) -> Any:
    log = []
    try:
        raise ValueError("v")
    except ValueError as error:
        kept = error
    try:
        error  # noqa: B018, F821
    except NameError as missing:
        log.append(str(missing))
    try:
        try:
            1 / 0
        finally:
            log.append("cleanup")
    except ZeroDivisionError as error:
        log.append(type(error.__context__).__name__)
    return log, kept.args, x + 1


@cases(x)
def exception_groups(x: Tensor) -> Any:
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        log.append(len(group.exceptions))
    except* KeyError:
        log.append("key")
    return log, x + 1


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_control_flow(case: Case) -> None:
    case.check()
