"""Programs about functions: arguments in all forms, closures and cells, generators, decorators, partials, recursion."""

import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from cases import Case, Cases
from torch import Tensor

import dynajit

x = torch.arange(6.0).reshape(2, 3)
cases = Cases()


def plain(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **named: Any) -> Any:
    return a + b + c + sum(rest) + sum(named.values()), rest, named


def positional(a: Any, /, b: Any, *, c: Any) -> Any:
    return a * b + c


@cases(x)
def arguments_in_all_forms(x: Tensor) -> Any:
    rest, named = (1, 2), {"c": 4, "z": 5}
    return (
        plain(x),
        plain(x, 1),
        plain(x, b=5),
        plain(x, 1, 2, 3),
        plain(x, *rest),
        plain(x, **named),
        plain(x, *rest, 7, **named, q=1),
        positional(x, 2, c=3),
        positional(x, b=1, c=x),
        plain(*[x], *(1,)),
    )


@cases(x)
def defaults(x: Tensor) -> Any:
    def f(a: Any, b: Any = x + 1, *, c: Any = [1]) -> Any:  # noqa: B006
        c.append(len(c))
        return a + b, list(c)

    return f(x), f(x, 1), f(x, c=[5]), f.__defaults__, f.__kwdefaults__


@cases(x, 1, 2)
def varargs_of_the_root(x: Tensor, *rest: int) -> Any:
    return x + sum(rest), rest


@cases(x, kwargs={"p": 1, "q": x})
def kwargs_of_the_root(x: Tensor, **named: Any) -> Any:
    return x + named["p"], named, list(named)


@cases(x, 3)
def lambdas(x: Tensor, n: int) -> Any:
    f = lambda a, k=n: a * k  # noqa: E731
    return f(x), (lambda *a: a)(1, x), [g(x) for g in (lambda t: t + 1, lambda t: t * 2)]


@cases(x)
def closures(x: Tensor) -> Any:
    scale = 2

    def inner(t: Tensor) -> Tensor:
        return t * scale + offset

    offset = x.sum()
    first = inner(x)
    scale = 5
    return first, inner(x)


@cases(x)
def nonlocal_writes(x: Tensor) -> Any:
    count, total = 0, x

    def step() -> None:
        nonlocal count, total
        count += 1
        total = total + count

    for _ in range(3):
        step()
    return count, total


@cases(x)
def counters_made_by_closures(x: Tensor) -> Any:
    def make() -> Callable[[], int]:
        n = 0

        def bump() -> int:
            nonlocal n
            n += 1
            return n

        return bump

    a, b = make(), make()
    return a(), a(), b(), x + a()


@cases(x, graphs=1)
def closure_returned(x: Tensor) -> Any:
    y = x + 1

    def get() -> Tensor:
        return y

    return get()


@cases(x)
def cell_deleted_and_unbound(x: Tensor) -> Any:
    y = 1

    def get() -> int:
        return y

    got = [get()]
    del y
    try:
        get()
    except NameError as error:
        got.append(str(error))
    y = 3
    return got, get(), x + 1


def scaled(factor: float) -> Callable[[Any], Any]:
    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) * factor

        return wrapper

    return decorate


@scaled(3.0)
def decorated(x: Tensor, y: int = 1) -> Tensor:
    """Docs."""
    return x + y


@cases(x)
def decorators(x: Tensor) -> Any:
    @scaled(2)
    def local(t: Tensor) -> Tensor:
        return t + 1

    return decorated(x), decorated(x, y=2), local(x), decorated.__name__, decorated.__doc__, local.__name__


def generate(n: int) -> Iterator[int]:
    for i in range(n):
        yield i


def delegating(n: int) -> Generator[Any, Any, str]:
    yield "start"
    got = yield from generate(n)
    yield from [10, 20]
    return f"done {got}"


@cases(x)
def generators(x: Tensor) -> Any:
    total = x
    for i in generate(3):
        total = total + i
    g = generate(4)
    first = next(g)
    rest = list(g)
    return (
        total,
        first,
        rest,
        next(g, "end"),
        list(delegating(2)),
        sum(generate(5)),
        [*generate(2)],
        dict(enumerate(generate(2))),
    )


@cases(x)
def generator_send_and_return(x: Tensor) -> Any:
    def echo() -> Generator[Any, Any, Any]:
        got = yield "ready"
        while got is not None:
            got = yield got * 2
        return "bye"

    g = echo()
    out = [next(g), g.send(1), g.send(x)]
    try:
        g.send(None)
    except StopIteration as stop:
        out.append(stop.value)
    return out


@cases(x)
def generator_throw_and_close(x: Tensor) -> Any:
    log: list[Any] = []

    def work() -> Generator[Any, Any, None]:
        try:
            yield 1
        except ValueError as error:
            log.append(str(error))
            yield 2
        finally:
            log.append("finally")

    g = work()
    log.append(next(g))
    log.append(g.throw(ValueError("boom")))
    g.close()
    h = work()
    next(h)
    h.close()
    h.close()
    k = work()
    k.close()
    return log, list(k), x + 1


@cases(x)
def generator_that_raises(x: Tensor) -> Any:
    def work() -> Iterator[int]:
        yield 1
        raise KeyError("inside")

    out = []
    try:
        for item in work():
            out.append(item)
    except KeyError as error:
        out.append(error.args)  # type: ignore[arg-type]
    return out, x + 1


@cases(x)
def unfinished_generators(x: Tensor) -> Any:
    def tensors() -> Iterator[Tensor]:
        t = x
        while True:
            t = t + 1
            yield t

    g = tensors()
    a = next(g)
    b = next(g)
    return a, b, [t for _, t in zip(range(2), tensors(), strict=False)]


@cases(x, [], graphs=None, breaks=None)
def generators_left_in_the_middle(x: Tensor, log: list[Any]) -> Any:
    def work(name: str) -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append(name)

    for _ in work("broken out of"):
        break
    log.append("after the loop")
    next(work("dropped"))
    kept = work("kept")
    next(kept)
    a, b = zip(work("zipped"), [1], strict=False), 1
    list(a)
    log.append(b)
    return x + 1


@cases(x)
def generator_expressions(x: Tensor) -> Any:
    g = (x + i for i in range(3))
    return next(g), sum(g), tuple(i for i in range(3) if i), any(i > 1 for i in range(3))


@cases(x)
def partials(x: Tensor) -> Any:
    add = functools.partial(plain, x, c=1)
    more = functools.partial(add, 2, z=3)
    return (
        add(),
        add(5),
        more(),
        more(7, c=2),
        add.func is plain,
        add.args,
        add.keywords,
        functools.partial(torch.add, x)(x),
    )


def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)


@cases(x)
def recursion(x: Tensor) -> Any:
    def depth(t: Any) -> int:
        return 1 + max((depth(s) for s in t), default=0) if isinstance(t, list) else 0

    return x + factorial(5), depth([[], [[1]]])


@cases(x)
def recursive_closure(x: Tensor) -> Any:
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x * fib(7)


@cases(x, torch.relu)
def function_argument(x: Tensor, fn: Any) -> Any:
    return fn(x - 2), fn is torch.relu, fn.__name__


@cases(x, lambda t: t * 7)
def lambda_argument(x: Tensor, fn: Any) -> Any:
    return fn(x)


@cases(x, functools.partial(torch.add, alpha=2))
def partial_argument(x: Tensor, fn: Any) -> Any:
    return fn(x, x)


@cases(x)
def function_attributes(x: Tensor) -> Any:
    def f() -> int:
        f.calls += 1  # type: ignore[attr-defined]
        return f.calls  # type: ignore[attr-defined,no-any-return]

    f.calls = 0  # type: ignore[attr-defined]
    f()
    return f(), f.__name__, hasattr(f, "other"), x + f.calls  # type: ignore[attr-defined]


@cases(x)
def builtin_callables_as_values(x: Tensor) -> Any:
    fs = [abs, len, str, int, torch.sin, x.sum, [1, 2].count, "a,b".split]
    return fs[0](-1), fs[1]([1]), fs[2](3), fs[3]("4"), fs[4](x), fs[5](), fs[6](1), fs[7](",")  # type: ignore[operator]


@cases(x)
def reducing(x: Tensor) -> Any:
    return functools.reduce(lambda a, b: a @ b, [x, x.T, x]), functools.reduce(lambda a, b: a + b, range(4), 10)


@cases(x, graphs=None, breaks=None)
def wrong_arguments_raise(x: Tensor) -> Any:
    y = x + 1
    return positional(y, 1)  # type: ignore[call-arg]


@cases(x, graphs=None, breaks=None)
def wrong_arguments_caught(x: Tensor) -> Any:
    texts = []
    for call in (
        lambda: positional(1),
        lambda: positional(1, 2, 3),
        lambda: positional(1, 2, c=1, d=2),
        lambda: plain(),  # type: ignore[call-arg,misc]
        lambda: plain(1, a=2),
        lambda: positional(a=1, b=2, c=3),
        lambda: (lambda: 0)(1),
    ):  # type: ignore[call-arg,misc]
        try:
            call()
        except TypeError as error:
            texts.append(str(error))
    return texts, x + 1


memo: dict[int, int] = {}


@functools.cache
def cached(n: int) -> int:
    return n * 2


@cases(x)
def lru_cached(x: Tensor) -> Any:
    return x + cached(3) + cached(3)


@cases(x, graphs=1, breaks=1)
def endless_recursion(x: Tensor) -> Any:
    def f(n: int) -> int:
        return f(n + 1)

    try:
        f(0)
    except RecursionError:
        return x + 1


@cases(x, graphs=1, breaks=4)
def star_star_errors(x: Tensor) -> Any:
    texts = []

    def f(**kw: Any) -> Any:
        return kw

    for call in (
        lambda: f(**{"a": 1}, **{"a": 2}),
        lambda: f(**{1: 2}),
        lambda: f(*1),
        lambda: f(**3),
        lambda: dict(a=1, **{"a": 2}),
        lambda: [*None],
        lambda: {**[1]},
    ):  # type: ignore[arg-type,call-overload,list-item,misc]
        try:
            texts.append(call())
        except TypeError as error:
            texts.append(str(error))
    return texts, x + 1


@cases(x, iter([1, 2, 3]), repeat=1, graphs=1, breaks=2)
def iterator_argument(x: Tensor, it: Any) -> Any:
    return next(it), x + 1, list(it)


def test_generator_argument() -> None:

    def program(x: Tensor, g: Any) -> Any:
        first = next(g)
        return x + first, sum(g)

    for fn in (program, dynajit.compile(program, backend="eager")):
        for _ in range(2):
            result, rest = fn(x, (i for i in (1, 2, 3)))
            assert torch.equal(result, x + 1) and rest == 5


@cases(x)
def late_binding_and_scopes(x: Tensor) -> Any:
    fs = [lambda: i for i in range(3)]
    gs = [lambda i=i: i for i in range(3)]
    n = 1

    def outer() -> Any:
        n = 2

        def inner() -> Any:
            nonlocal n
            n += 1
            return n

        return inner(), n

    return [f() for f in fs], [g() for g in gs], outer(), n, (lambda *a, k=3, **kw: (a, k, kw))(1, 2, z=4), x + 1


@cases(x)
def global_statement_in_nested_function(x: Tensor) -> Any:
    def write() -> None:
        global corner_global
        corner_global = 5  # type: ignore[name-defined]

    write()
    return corner_global, "corner_global" in globals(), x + 1  # type: ignore[name-defined]


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_functions(case: Case) -> None:
    case.check()
