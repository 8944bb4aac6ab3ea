"""The broader kind of random programs, for seeds from `BROAD` on: modules with hooks and buffers, training steps,
generators with send and throw, match, dataclasses and named tuples, context managers, NumPy, torch.func, augmented
assignment to attributes and items, classes and decorators of the program's own.

In and out: templates and compound statements that `fuzz_generate.py` takes besides its own; see there for how to add.
What they use is in `fuzz_objects.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Seeds from here on give programs of this kind.
BROAD = 20_000_000

TENSOR = """
NET(<tensor>.float())|NET(<tensor>.float(), scale=<float>)|NET.child(<tensor>.float())|NET.weight * <tensor>
NET.total + <tensor>|NET.scaled(<tensor>.float(), <int>)|NET.others[0](<tensor>.float())|NET.recent.sum() + <tensor>
torch.nn.functional.relu(NET(<tensor>.float()), inplace=True)|torch.nn.Sequential(NET, NET.child)(<tensor>.float())
Point(<tensor>, <int>).moved(<tensor>).x|Point(x=<tensor>, y=<int>).total()|dataclasses.replace(POINT, x=<tensor>).x
POINT.x + <tensor>|dataclasses.asdict(Point(1, <int>))['y'] * <tensor>|(Point(1, 2) == Point(1, <int>)) * <tensor>
Pair(<tensor>, <int>).both()|Pair(<tensor>)._replace(second=<tensor>).both()|sum(Pair(<tensor>, <tensor>))
Pair(<tensor>, <int>)._asdict()['first']|Pair(*[<tensor>, <tensor>])[1]
torch.func.grad(lambda q: (q * q).sum())(<tensor>.float())
torch.func.grad(lambda q: (q * <tensor!>.detach().float()).sin().sum())(x.float())
torch.func.vmap(lambda q: q * 2 + <float>)(<tensor>)|torch.func.vmap(lambda q: q.sum() * <float>)(<tensor>)
torch.func.grad_and_value(lambda q: (q ** 2).sum())(<tensor>.float())[1]
torch.func.vmap(torch.func.grad(lambda q: (q.sin() * q).sum()))(<tensor>.float())
torch.func.functional_call(NET, {'weight': torch.ones(1) * <float>}, (<tensor>.float(),))
torch.from_numpy(<tensor>.detach().float().numpy() * 2)|torch.from_numpy(np.arange(3, dtype=np.float32) + <int>)
torch.as_tensor(np.array([1.0, <int>], dtype=np.float32))[:1] * <tensor>|torch.tensor(np.float32(<float>)) * <tensor>
torch.from_numpy(np.sin(<tensor>.detach().double().numpy()))|<tensor> * float(np.float64(<int>) / 3)
traced(lambda q: q + <tensor>)(<tensor>)|(lambda *a, **k: sum(a) * len(k))(<tensor>, <tensor>, p=1, q=2)
functools.partial(torch.add, alpha=<int>)(<tensor>.float(), <tensor>.float())|operator.mul(<tensor>, <float>)
next(answering(<tensor>))|[q for q, _ in zip(answering(<tensor>), range(3))][-1]|operator.itemgetter(-1)(<list>)
collections.OrderedDict(a=<tensor>, b=<tensor>)['b']|collections.defaultdict(lambda: <tensor>)['q']
collections.deque(<list>, maxlen=2)[-1]|list(itertools.chain(<list>, [<tensor>]))[-1]
list(itertools.accumulate(<list>, lambda p, q: p + q))[-1]|[p * q for p, q in itertools.product(<list>, [1, <int>])][-1]
max((q for q in <list>), key=torch.Tensor.dim)|(x := <tensor>) + x|[y := <tensor>, y * 2][1]
"""

INT = """
NET.calls % 7|len(list(NET.parameters()))|POINT.y|len(POINT.tags) % 5|Pair(1, <int>).second|sum(Pair(<int>, 3)) % 5
int(np.int64(<int>) * 2) % 7|int(np.array([1, <int>]).max())|len(NET.log) % 5|NET.training + 1
collections.Counter([<int>, 2, 2])[2]|len({*range(<int> % 4)} ^ {1, 2})|operator.index(<int>)
functools.reduce(operator.add, [<int>, 1, 2], 0)
len(format(<int>, '03d')) + len('{!r:>5}'.format(flag))|divmod(<int>, 4)[0]
"""

SIMPLE = """
<obj>.weight += <float>|<obj>.weight *= <tensor>|<list>[0] += <tensor>|<list>[-1] *= <float>|<dict>['a'] *= <float>
<dict>['a'] += <tensor>|<obj>.count -= 1|<list>[<int> % len(<list>)] -= 1|POINT.x = POINT.x + <float>|POINT.y += 1
POINT.x += <float>|POINT.tags.append(<int>); del POINT.tags[:-2]|POINT.x = <tensor>.detach()|<obj>.log += [<int>]
<tensor!>[0] += <float>|<tensor!>[..., 0] *= <float>|<tensor!>[:1] -= <tensor>|<obj>.log[:1] = [<int>, <int>]
NET.total += 1|NET.total.mul_(0.5)|NET.calls = 0|NET.train(bool(<condition>))|NET.eval()
NET.log.append(<int>); del NET.log[:-3]
NET.register_buffer('extra', <tensor>.detach())|NET.recent = <tensor>.detach()|NET.weight.data.mul_(0.9)
for name, p in NET.named_parameters(): print(name, tuple(p.shape))|print(sorted(NET.state_dict()), NET.training)
for name, b in NET.named_buffers(): print(name, b.dim())|NET.zero_grad()|NET.requires_grad_(bool(<int> % 2))
with torch.no_grad(): NET.weight.mul_(0.9)|with torch.no_grad(): NET.weight.copy_(torch.ones(1) * <float>)
NET.load_state_dict({k: v * 0.5 for k, v in NET.state_dict().items()}, strict=False)
handle = NET.register_forward_hook(lambda m, i, o: o * 2); x = NET(<tensor>.float()); handle.remove()
handle = NET.register_forward_pre_hook(lambda m, i: (i[0] + 1,)); x = NET(<tensor>.float()); handle.remove()
h = NET.child.register_forward_hook(lambda m, i, o: NET.log.append(o.dim())); x = NET(x.float()); h.remove()
with scope(SEEN) as held: x = x + held|with scope(SEEN, swallow=True): raise ValueError('v%d' % <int>)
g = answering(<tensor>); next(g); x = g.send(<float>); g.close()
g = answering(<tensor>); next(g); x = g.throw(ValueError('t')) + 1; del g|g = answering(x); x = next(g); y = next(g)
p, *q = Pair(<tensor>, <int>); x = p * q[0]|fn = traced(lambda q: q * <float>); x = fn(fn(x)); print(fn.count)
<tensor!>.grad = None|x = <tensor>.clone(); x.register_hook(lambda g: g * 2) if x.requires_grad else None
del x; x = <tensor>|print(*[f'{k}:{v.dim()}' for k, v in sorted(<dict>.items())], sep=';')
a = b = []; a.append(<int>); print(b)|a = [[]] * 2; a[0].append(<int>); print(a)
<list>[0], <list>[-1] = <list>[-1], <list>[0]
x, items[0] = items[0], x|<dict>['a'], x = x, <dict>['a']|<dict>['list'] = items; <dict>.pop('list').append(x)
arr = <tensor>.detach().float().numpy(); arr = arr + 1; x = torch.from_numpy(arr)
arr = np.zeros(3, dtype=np.float32); arr[<int> % 3] = <int>; x = torch.from_numpy(arr)
arr = x.detach().numpy(); arr *= 2|print(np.float32(<int>), np.arange(<int> % 3).tolist())
"""

Compound = Callable[[Any, int], None]
COMPOUNDS: list[tuple[Compound, int]] = []


def compound(weight: int) -> Callable[[Compound], Compound]:
    """Register a compound statement of the broader kind."""

    def register(function: Compound) -> Compound:
        COMPOUNDS.append((function, weight))
        return function

    return register


@compound(3)
def training_step(out: Any, budget: int) -> None:
    optimizer = out.rng.choice(("OPT", "OPT", "ADAM"))
    loss = out.rng.choice(("(NET({}) ** 2).mean()", "(NET({}) - NET.child({})).abs().sum()", "NET({}).sum() * 0.1"))
    given = f"({out.expression('tensor')}).detach().float()"
    out.emit("try:")
    out.depth += 1
    for _ in range(out.rng.randint(1, 2)):
        out.emit(
            out.rng.choice((f"{optimizer}.zero_grad()", f"{optimizer}.zero_grad(set_to_none=False)", "NET.zero_grad()"))
        )
        out.emit(f"loss = {loss.replace('{}', given)}")
        if out.rng.random() < 0.3:
            out.simple()
        out.emit("loss.backward()")
        if out.rng.random() < 0.3:
            out.emit("torch.nn.utils.clip_grad_norm_(NET.parameters(), 0.5)")
        out.emit(f"{optimizer}.step()")
    out.emit("x = x + loss.detach()")
    out.depth -= 1
    out.emit("except RuntimeError as error:")
    out.emit("    print('no step', type(error).__name__)")


@compound(2)
def local_class(out: Any, budget: int) -> None:
    name = out.fresh("Local")
    base = out.rng.choice(("Thing", "Vector", "object", "Point"))
    out.emit(f"class {name}({base}):")
    out.emit(f"    level_ = {out.expression('int')}")
    if base == "Thing":
        out.emit("    def method(self, value): return super().method(value) * self.level_")
        out.emit(f"x = {name}({out.expression('tensor')}, 2, True).method(x)")
    elif base == "Vector":
        out.emit("    def __neg__(self): return super().__neg__() + self.count")
        out.emit(f"x = -{name}({out.expression('tensor')}, {out.expression('int')})")
    elif base == "Point":
        out.emit("    def total(self): return super().total() + self.level_")
        out.emit(f"x = {name}({out.expression('tensor')}, {out.expression('int')}).total()")
    else:
        out.emit("    def __init__(self, value): self.value = value")
        out.emit("    @property")
        out.emit("    def twice(self): return self.value * 2 + self.level_")
        out.emit("    def __iadd__(self, other): self.value = self.value + other; return self")
        out.emit(f"made = {name}({out.expression('tensor')}); made += {out.expression('tensor')}; x = made.twice")


@compound(3)
def counting_closure(out: Any, budget: int) -> None:
    maker, made = out.fresh("maker"), out.fresh("made")
    out.emit(f"def {maker}(start):")
    out.emit("    count, kept = start, []")
    out.emit(f"    def {made}(q):")
    out.emit("        nonlocal count")
    out.emit("        count += 1")
    out.emit("        kept.append(q)")
    out.emit(f"        return q * count + kept[0] + {out.expression('tensor')}")
    out.emit(f"    return {made}, lambda: count + len(kept)")
    out.emit(f"{made}, seen = {maker}({out.expression('int')})")
    out.emit(f"x = {made}({made}(x)); n = seen() % 6")


@compound(3)
def generator_talk(out: Any, budget: int) -> None:
    name = out.fresh("talk")
    out.emit(f"def {name}(q):")
    out.emit("    nonlocal n")
    out.emit("    try:")
    out.emit(f"        got = yield q + {out.expression('tensor')}")
    out.emit("        n = (n + 1) % 6")
    out.emit("        while got is not None:")
    out.emit("            got = yield q * got")
    out.emit("    except (ValueError, Oops) as error:")
    out.emit(f"        print('in', error); yield {out.expression('tensor')}")
    out.emit("    finally:")
    out.emit("        print('end', n)")
    out.emit(f"    return {out.expression('int')}")
    run = out.rng.randrange(4)
    if run == 0:
        out.emit(f"g = {name}(x); next(g); x = g.send(2); x = x + g.send({out.expression('tensor')})")
    elif run == 1:
        out.emit(f"g = {name}(x); x = next(g); y = g.throw(Oops({out.expression('int')})); g.close()")
    elif run == 2:
        out.emit(f"def outer(q): r = yield from {name}(q); print('r', r); yield q")
        out.emit("x = list(outer(x))[-1]")
    else:
        out.emit(f"g = {name}(x); next(g)")
        out.emit("try: g.send(None)")
        out.emit("except StopIteration as stop: n = stop.value % 6")


@compound(2)
def own_context(out: Any, budget: int) -> None:
    name = out.fresh("ctx")
    out.emit("@contextlib.contextmanager")
    out.emit(f"def {name}(q):")
    out.emit("    nonlocal n")
    out.emit("    n = (n + 1) % 6")
    out.emit("    try:")
    out.emit(f"        yield q * 2 + {out.expression('tensor')}")
    out.emit("    except ValueError as error: print('swallowed', error)")
    out.emit("    finally: print('left', n)")
    out.emit(f"with {name}({out.expression('tensor')}) as held:")
    out.emit("    x = held + 1")
    if out.rng.random() < 0.4:
        out.emit(f"    if {out.expression('condition')}: raise {out.rng.choice(('ValueError(n)', 'KeyError(1)'))}")
    out.block(budget // 2)


@compound(3)
def structural_match(out: Any, budget: int) -> None:
    subjects = (
        "Point(x, n)",
        "Pair(x, n)",
        "items",
        "table",
        "n",
        "flag",
        "[n, *items]",
        "{**table, 'k': n}",
        "x",
        "POINT",
    )
    cases = (
        "Point(x=q, y=0)", "Point(q, y) if y > 1", "Pair(q, second=2)", "[q]", "[q, *_]", "[int(k), q, *rest]",
        "{'a': q, **rest}", "{'k': 0 | 1}", "int(k) | bool(k)", "str()", "torch.Tensor() as q", "None", "True",
        "(p, q)",
    )  # fmt: skip
    out.emit(f"match {out.rng.choice(subjects)}:")
    out.depth += 1
    for case in out.rng.sample(cases, 4):
        out.emit(f"case {case}:")
        named = ["q"] if "q" in case else []
        if named:
            out.emit("    print('q', type(q).__name__)")
        out.emit(f"    print({case[:6]!r})")
        out.block(1)
    out.emit("case _:")
    out.block(1)
    out.depth -= 1


@compound(1)
def recursion(out: Any, budget: int) -> None:
    name = out.fresh("again")
    out.emit(f"def {name}(q, k):")
    out.emit(f"    if k <= 0: return q + {out.expression('tensor')}")
    out.emit(f"    return {name}(q * 1.1, k - 1) + k")
    out.emit(f"x = {name}(x, n % 4)")


@compound(1)
def gathers(out: Any, budget: int) -> None:
    """A loop that fills containers and a second one that reads them."""
    out.emit("made = {}")
    out.emit(f"for i, q in enumerate([*items, {out.expression('tensor')}][:4]):")
    out.emit(f"    made.setdefault(i % 2, []).append(q * {out.expression('int')})")
    if out.rng.random() < 0.5:
        out.emit("    if i == n: continue")
        out.emit("    made[i % 2][-1] += 1")
    out.emit("x = sum(sum(v) for v in made.values())")
