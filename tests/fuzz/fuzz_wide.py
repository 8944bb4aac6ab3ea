"""Compound statements for seeds from `WIDE` on, besides those of `fuzz_broad.py`: class hierarchies, nested `finally`,
delegating generators, views of dictionaries, closures over loops' variables, tensor subclasses, overlapping memory,
optimizers of several kinds, torch.func, sizes and structures that change between calls.

In and out: `SNIPPETS`, blocks of lines between empty lines, which `fuzz_generate.py` takes one of. Beside its
placeholders, `{{a||b}}` is one of the two (or more), `$` a number that is the snippet's own, and a line `<block>` a
random block. To cover one more thing, add a snippet.
"""

from __future__ import annotations

import re
from typing import Any

#: Seeds from here on give programs of this kind too.
WIDE = 40_000_000

SNIPPETS = """
class Root$:
    made = 0
    def __init__(self, value, *, by=1):
        self.value, self.by = value, by
        type(self).made += 1
    @property
    def scaled(self): return self.value * self.by
    @scaled.setter
    def scaled(self, new): self.value = new; self.by = <int>
    def step(self, q): return q + self.scaled
    @classmethod
    def of(cls, q): return cls(q, by=<int>)
class Left$(Root$):
    def step(self, q): return super().step(q) * {{2||<float>||self.by}}
class Right$(Root$):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = <int>
    def step(self, q): return super(Right$, self).step(q) - self.extra
class Both$({{Left$, Right$||Right$, Left$||Left$||Right$}}):
    @property
    def scaled(self): return super().scaled + 1
tree$ = Both${{.of(<tensor>)||(<tensor>, by=<int>)||(<tensor>)}}
try:
    {{tree$.scaled = <tensor>||tree$.value = <tensor>||tree$.by += 1||del tree$.value}}
except AttributeError as error: print('attribute', error)
x = {{tree$.step(<tensor>)||Root$.step(tree$, x)||sum(t.step(x) for t in (tree$, Left$.of(y)))}}
n = (n + Both$.made + Root$.made) % 6

for i$ in range(<int> % 4):
    with {{scope(SEEN) as held||Scope(obj) as held||torch.no_grad()||Vector(<tensor>, 2)||scope(SEEN, swallow=True)}}:
        x = x * 0.9 + i$
        <block>
        if {{<condition>||i$ == 1||x.sum() > 0.137}}: {{break||continue||raise ValueError(i$)||return x, y, n, SEEN}}
        x = x + 0.5
    print('after', i$)
else:
    x = x - 1

def last$(q):
    for k in range(<int> % 3 + 1):
        try:
            try:
                if {{<condition>||k == 1||q.sum() > 0.137}}: {{return q * k||continue||break||raise KeyError(k)}}
                q = q + <tensor>
            finally:
                print('inner', k)
                {{q = q * 2||SEEN.append(k)||pass}}
                {{if k == 2: return q - 1||if k > 2: raise ValueError('from finally')||pass}}
        except {{KeyError||LookupError||(KeyError, ValueError)}} as error:
            print('caught', error, repr(error.__context__))
            {{q = q + 0.25||return q||continue||raise}}
        else: q = q - 1
        finally: print('outer', k)
    return q
try: x = last$({{x||<tensor>}})
except (LookupError, ValueError) as error: print('left', repr(error), repr(error.__context__))

def leaf$(q):
    try:
        got = yield q + <tensor>
        while got is not None: got = yield q * got
        return <int>
    finally: print('leaf ends')
def stem$(q):
    try:
        total = yield from leaf$(q)
        total += yield from {{leaf$(q * 2)||(q * k for k in range(2))||iter([q])}} or 0
    except {{ValueError||Oops||GeneratorExit}} as error:
        print('stem', type(error).__name__)
        {{raise||return 3||total = 1}}
    return total
g$ = stem$(<tensor>)
try:
    x = next(g$)
    x = x + g$.send({{<float>||None||<tensor>}})
    {{x = x + sum(q.sum() for q in g$)||g$.throw(ValueError('v'))||g$.throw(Oops(1))||g$.close()||y = next(g$)||pass}}
except (StopIteration, ValueError, Oops, TypeError) as error: print(type(error).__name__, getattr(error, 'value', None))

d$ = {'a': <tensor>, 'b': <int>, **table}
ks$, vs$ = d$.keys(), d$.values()
try:
    for k, v in d$.items():
        {{if k == 'b': d$['new'] = v||d$[k] = v * 2||if k == 'a': del d$['b']||x = x + v}}
except RuntimeError as error: print('dict', error)
print({{sorted(ks$ & {'a', 'new'})||sorted(ks$ | {'q'})||sorted(ks$ ^ table.keys())||len(vs$)||'b' in ks$}})
s$ = {1, <int>, 3}; s$ {{|=||&=||-=||^=}} {{ {3, <int>} || set() || {1} }}
try:
    for e in sorted(s$) if <condition> else s$: {{s$.discard(e)||s$.add(e)||x = x + e}}
except RuntimeError as error: print('set', error)
n = (n + len(s$) + len(ks$)) % 6

def keeps$(q, kept=[], *, table={'n': 0}, again=None):
    kept.append({{q||q.sum()||n}}); table['n'] += 1
    return sum(kept) * table['n'] {{||+ q||- len(kept)}}
x = keeps$(x)
x = keeps$({{y||<tensor>}}{{||, [<tensor>]||, table={'n': <int>}}}) + keeps$(x)
print(len(keeps$.__defaults__[0]), keeps$.__kwdefaults__['table'])

late$ = []
for i, q in enumerate([*items, <tensor>][:3]):
    {{late$.append(lambda v: v * i + q)||late$.append(lambda v, i=i: v * i + q)||late$ += [lambda v: (v, i)[0]]}}
    def adds$(v): return v + {{i||q||n||len(late$)}}
    late$.append(adds$)
{{i = <int>||q = <tensor>||pass}}
for f in late$: x = f(x){{||; print(f.__name__)}}
{{i = 5; x = late$[0](x)||del late$[0]; x = x + 1||pass}}

t$ = {{<tensor>.detach().as_subclass(Tagged)||x.as_subclass(Tagged)||Tagged([1.0, <float>])[:1]}}
t$.tag = <int>
r$ = {{t$ * 2||t$ + <tensor>||<tensor> * t$||torch.sin(t$.float())||t$.twice()||t$.clone().mul_(2)||t$[:1]}}
print(type(r$).__name__, getattr(r$, 'tag', None), isinstance(r$, Tagged))
{{x = r$||x = r$.as_subclass(torch.Tensor)||x = torch.add(r$, x)||y = r$.detach() + r$}}

s$ = {k: v.clone() for k, v in NET.state_dict().items()}
{{x = NET(x.float())||NET.total += 1||s$['weight'] += <float>||s$['weight'].mul_(0.5)}}
try: print(NET.load_state_dict(s${{||, strict=False||, assign=False}}))
except RuntimeError as error: print('state', len(str(error)))
{{twin$ = copy.deepcopy(NET); x = twin$(x.float()); twin$.weight.data.add_(1)||pass||x = NET(x.float())}}
x = x + {{NET.weight||s$['child.bias']||NET.state_dict()['weight']}}

flat$ = {{<tensor>.clone().flatten()||torch.arange(6.0) + <int>||<tensor>.reshape(-1)}}
a$, b$ = {{flat$[:-1], flat$[1:]||flat$[::2], flat$[:1]||flat$, flat$.view(-1)||flat$.unfold(0, 1, 1), flat$}}
try:
    {{a$.copy_(b$)||a$.add_(b$)||b$.mul_(2); a$ += 1||a$[...] = b$ * 2||torch.add(a$, 1, out=b$)||a$.mul_(b$.clone())}}
    {{flat$.mul_(0.5)||b$.zero_()||a$.view(-1)[0] = <float>||pass}}
    x = x + a$.sum() {{||+ b$.sum()||* flat$[-1]}}
except (RuntimeError, IndexError) as error: print('overlap', type(error).__name__)

m$ = {{x.clone()||<tensor>.clone()||y}}
o$ = {{torch.as_strided(m$, (2, 2), (1, 1))||m$.t()||m$.expand(2, *m$.shape)||m$.diagonal()||m$[..., ::2]}}
{{m$.add_(1)||m$.mul_(<tensor>)||o$.mul_(2)||o$ += <float>||m$[..., 0] = 0.5}}
{{x = o$.sum() + m$||y = o$||x = x * o$.mean()||m$ = None; x = o$ + 1}}

with {{torch.no_grad()||torch.inference_mode()||torch.enable_grad()||torch.autocast('cpu', dtype=torch.bfloat16)}}:
    v$ = {{NET.weight||NET.child.bias||<tensor>||<tensor>.detach()}}{{[None]||.t()||.view(-1)||.detach()||[..., :1]||}}
{{dynajit.graph_break()||print(v$.requires_grad)||pass}}
try: x = x + {{v$.sum()||v$.detach().mean()||(v$ * 2).float().sum()||torch.relu(v$).mean()}}
except RuntimeError as error: print('view', str(error)[:40])
print(v$.requires_grad, v$.is_leaf, v$.is_inference())

opt$ = OPTS['{{AdamW||RMSprop||Adagrad||Nesterov||NAdam||Adamax||Adadelta||RAdam}}']
for _ in range({{1||2}}):
    opt$.zero_grad({{||set_to_none=False}})
    loss$ = (NET(<tensor>.detach().float()) {{* <float>||- 1}}).pow(2).mean()
    try: loss$.backward(); opt$.step()
    except RuntimeError as error: print('no step', type(error).__name__)
    {{opt$.param_groups[0]['lr'] *= 0.5||opt$.param_groups[0]['lr'] = 0.01||pass||pass||print(len(opt$.state))}}
x = x + loss$.detach()

with torch.autocast('cpu', dtype=torch.bfloat16{{||, enabled=<condition>||, cache_enabled=False}}):
    p$ = {{<tensor>.float() @ <tensor>.float()||torch.nn.functional.linear(x.float(), torch.eye(x.shape[-1]))}}
    with torch.autocast('cpu', enabled={{False||<condition>||True}}):
        q$ = {{p$ + x||p$.float().softmax(-1)||p$ @ p$||torch.cat([p$.float(), p$.float()])[:1]}}
    <block>
    print(torch.is_autocast_enabled('cpu'), p$.dtype, q$.dtype)
x = {{q$||p$ + q$||q$.float()}}

f$ = lambda q: (q {{* q||.sin()||* <float> + n||** 3}}).{{sum()||mean()||float().logsumexp(0).sum()}}
w$ = <tensor>.detach().float()
x = x + {{torch.func.jvp(f$, (w$,), (torch.ones_like(w$),))[1]||torch.func.vjp(f$, w$)[1](torch.ones(()))[0].sum()}}
v$ = w$.flatten()[:2]
x = x + {{torch.func.jacrev(f$)(w$)||torch.func.jacfwd(f$)(w$)||torch.func.hessian(f$)(v$).sum()}}
if w$.dim(): y = {{torch.func.vmap(f$)(w$)||torch.func.vmap(torch.func.grad(f$), in_dims=-1)(w$)||y}}

h$ = x.{{shape[0] if x.dim() else 1||numel()||size(-1) if x.dim() else 2||dim()}}
x = x {{* h$||+ torch.arange(float(h$)).sum()||/ (h$ + 1)||- torch.ones(h$ + 1).mean()}}
if {{h$ > 3||h$ % 2||h$ == n||h$ >= len(items)}}: x = x + h$
y = {{torch.zeros(h$, 2).sum(0)[:1] + x||torch.stack([x] * (h$ % 3 + 1))[0]||x.expand(h$ % 2 + 1, *x.shape)[0]}}
y = y + {{torch.cat([x.flatten()] * 2)[h$ % 2::h$ + 1][:1]||torch.eye(h$)[:1, :1]||h$}}
for i in range(min(h$, 3)): x = x + {{i||y.flatten()[:1]||torch.full((), float(i * h$))}}
print(h$, {{tuple(x.shape)||h$ // 2||f'{h$:>4}'||[h$] * 2||x.shape == y.shape}})

more$ = getattr(obj, 'more', None)
if more$ is None: x = x + 1
elif isinstance(more$, dict): x = x + sum(v for v in more$.values() if torch.is_tensor(v)) * len(more$)
elif isinstance(more$, (list, tuple)):
    for part in more$: x = x + (part if not isinstance(part, (list, dict)) else len(part))
    {{if isinstance(more$, list): more$.append(<tensor>)||print(len(more$))||pass}}
else: x = x {{* more$||+ more$||- more$ * 2||+ (more$ > 1)}}
{{obj.more = {'r': <tensor>}||obj.more = [more$, x]||print(type(more$).__name__)||pass}}

c$ = {{n||flag||n * 0.5||float(n)||bool(n)||n / 3||int(flag == 'yes')||(n, flag)[0]}}
x = x {{* c$||+ c$||.clamp(max=c$) if isinstance(c$, (int, float)) and not isinstance(c$, bool) else x||- (c$ or 1)}}
if {{c$ > 1||not c$||c$ == 2||type(c$) is float||c$ is True}} if c$ is not None else False: x = x + 1
print(c$, {{c$ == 1||type(c$).__name__||round(c$ or 0, 2)||-c$ if c$ else 0}})

class Fn$(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k{{||=2}}):
        ctx.save_for_backward(q); ctx.k = k
        return q * k
    @staticmethod
    def backward(ctx, grad):
        q, = ctx.saved_tensors
        return {{grad * ctx.k||grad * q.cos()||grad.clone()}}, None
x = Fn$.apply({{x.float()||<tensor>.float()}}, {{<int>||<float>}}) {{+ 1||* x}}

try:
    try: raise ExceptionGroup('g$', [ValueError(<int>), {{KeyError('k')||Oops(2)||TypeError('t')}}])
    except* ValueError as group: print(len(group.exceptions)); x = x + 1
    except* {{KeyError||LookupError||Oops}} as group: x = x * 2; {{print('group')||raise||pass}}
except ExceptionGroup as rest: print('rest', rest.message, [type(e).__name__ for e in rest.exceptions])

with contextlib.ExitStack() as stack$:
    held$ = [stack$.enter_context({{scope(SEEN)||Scope(obj)||Vector(x, k)}}) for k in range(<int> % 3)]
    stack$.callback({{print, 'called'||SEEN.append, 4||x.add_, 1}})
    <block>
    {{x = x + len(held$)||stack$.pop_all().close()||if <condition>: raise ValueError('in stack')}}

class Colour$(enum.IntEnum):
    RED = 1
    BLUE = <int> + 10
@functools.lru_cache(maxsize=None)
def cached$(k): print('computed', k); return k * 2
@functools.singledispatch
def pick$(v): return v * 1
@pick$.register
def _(v: int): return v + 1
x = x * cached$({{n||1}}) + cached$(1) + {{pick$(x)||pick$(n)}}
x = x + (Colour$.RED if <condition> else Colour$.BLUE); print(Colour$(1).name)

ref$ = weakref.ref({{obj||NET}})
same$ = copy.copy({{items||table||obj}})
deep$ = copy.deepcopy([{{n, flag||x.detach(), x.detach()||SEEN||POINT.x.detach()}}])
x = x + len(deep$); print(ref$() is {{obj||NET}}, type(same$).__name__)
if isinstance(same$, list): same$.append(<tensor>); x = x + len(items)

a$, b$ = {8, 16, <int>, {{0||24||256}} }, {{frozenset([0, 32])||set([*range(9), 64])||dict.fromkeys([40, 8]).keys()}}
s$ = {{a$ & b$||a$ - b$||a$ ^ b$||b$ - a$||b$ & a$||b$ ^ a$||set([*a$, *b$])||a$.union(b$, [48])||set(b$) - set([8])}}
{{a$ ^= a$ & b$||a$.discard(8); a$.add(128)||a$.update(b$)||pass||s$ = s$.union(a$)}}
{{dynajit.graph_break()||pass||obj.members = s$}}
print([*s$], [*a$], [*(s$ - {16})]); x = x + next(iter(s$), 1)

w$ = <tensor>.float() * <float>
with {{torch.no_grad()||torch.enable_grad()||torch.no_grad(), Scope(obj)||contextlib.nullcontext()}}:
    {{print('p', <int>)||print(w$.sum().item() > 0.137)||dynajit.graph_break()||<block>}}
{{w$.mul_(<float>)||w$ += <float>||w$.detach().mul_(0.5)||w$.data.add_(1)||w$.view(-1)[:1].sin_()||x.data.mul_(0.5)}}
{{w$.exp_()||w$.mul_(x.sum().float())||y.data.add_(1)||w$ = w$ + torch.rand(1)||pass}}
x = {{w$||w$ * 2||w$ + x||w$.sum() * x}}

v$ = {{<tensor> * <float>||<tensor>.clone()||torch.ones(2, 3)}}
for i in range(<int> % 3 + 1):
    v$.{{transpose_(0, -1)||unsqueeze_(0)||squeeze_()||swapaxes_(-1, 0)||as_strided_((1,), (1,))}}
    {{print('laid out', i)||x = opaque(x)||y = y + v$.sum()||pass}}
{{x = v$||x = v$ + x||print(v$.shape, v$.stride())||items.append(v$)}}

order$ = {k: [*v] for k, v in itertools.groupby(sorted([1, <int>, 2, 3]), key=lambda k: k % 2)}
left$, (mid$, *right$), end$ = {{[x, (y, n, z), 1]||(x, [y], 2)||[x, items, <int>]}}
x = left$ + (mid$ * len(right$) if torch.is_tensor(mid$) else 1) + end$ * len(order$)
while (count$ := {{len(right$)||n % 3}}) and <condition>:
    right$ = right$[1:]; n -= 1; x = x + count$
    {{if <condition>: break||<block>||pass}}
else: print('ran out')
"""

_CHOICE = re.compile(r"\{\{(.*?)\}\}(?!\})")


def _snippets() -> list[list[str]]:
    return [block.splitlines() for block in SNIPPETS.strip().split("\n\n")]


def snippet(out: Any, budget: int) -> None:
    """Write a random snippet."""
    number = out.fresh("_")[1:]
    depth = out.depth
    for line in out.rng.choice(_snippets()):
        text = _CHOICE.sub(lambda found: out.rng.choice(found[1].split("||")), line)
        words = text.lstrip()
        out.depth = depth + (len(text) - len(words)) // 4
        if words.strip() == "<block>":
            out.depth -= 1
            out.block(max(1, budget // 2))
        else:
            out.emit(out.fill(words.replace("$", number)))
    out.depth = depth
