"""Random programs as text. In: a seed. Out: the source of a module whose `main` is the function under test.

Expressions and simple statements are templates in the tables below, separated by `|`; `<tensor>`, `<int>`,
`<condition>`, ... stand for a random variable or expression of that kind, `<tensor!>` for a variable only. To cover one
more thing, add it to a table; for a new compound statement, write a method with `@compound`. Tensors have shapes that
broadcast with each other (n x n, n, n x 1, 2 x n x n, scalar), so that most operations succeed; those that don't are
programs about exceptions. Comparisons of floats use odd thresholds, so that rounding doesn't decide them.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import warnings
from collections.abc import Callable

import fuzz_broad
import fuzz_wide

# Not here: an `alpha` that is a bool, and `clamp` of integers to a float. Torch's fake tensors accept or type
# them otherwise than its real ones, so that no tracer sees the error.
TENSOR = """
<tensor> + <tensor>|<tensor> * <int>|<tensor> - <tensor> * 0.5|<tensor> / (<tensor>.abs() + 1)|-<tensor>
<int> - <tensor>|0.3 * <tensor>|<tensor>.sin()|torch.relu(<tensor>)|torch.tanh(<tensor>)|torch.sigmoid(<tensor> * 0.7)
<tensor>.abs().sqrt()|torch.exp(-<tensor>.abs())|torch.where(<tensor> > 0.137, <tensor>, <tensor>)
torch.where(<tensor> < <tensor> + 0.013, <tensor>, 0.25)|<tensor>.clamp(min=-1, max=int(<int>))
torch.maximum(<tensor>, <tensor>)|torch.minimum(<tensor>, <tensor>)
torch.lerp(<tensor>.float(), <tensor>.float(), 0.25)|<tensor>.sum()|<tensor>.sum(-1, keepdim=True)
<tensor>.float().mean(0)|<tensor>.amax(-1)|<tensor>.float().softmax(-1)|<tensor>.max()|<tensor>.cumsum(0)
<tensor>.float().var()|<tensor>.float().norm()|<tensor>.argmax()|(<tensor> > 0.137).sum()|(<tensor> > 0.137).any()
<tensor>.float() @ <tensor>.float()|torch.nn.functional.layer_norm(<tensor>.float(), <tensor>.shape[-1:])
torch.nn.functional.gelu(<tensor>.float())|<tensor>.t()|<tensor>.transpose(0, -1)|<tensor>[0]|<tensor>[..., 0]
<tensor>[..., :1]|<tensor>[None, 0]|<tensor>.view(-1)[0]|<tensor>.flatten()[-1]|<tensor>.unsqueeze(0)
<tensor>.reshape(<tensor>.shape)|<tensor>.contiguous()|<tensor>.clone()|<tensor>.detach()|<tensor>.expand_as(<tensor>)
<tensor>[<int> % 3 - 1]|<tensor>[::2][:1]|<tensor>.flip(0)|torch.cat([<tensor>, <tensor>])[:1]
torch.stack([<tensor!>, <tensor!> + 1]).sum(0)|<tensor>.to(torch.float64)|<tensor>.to(torch.bfloat16)|<tensor>.long()
<tensor>.bool()|<tensor>.to(<tensor>.dtype)|<tensor>.type_as(<tensor>)|torch.zeros_like(<tensor>)
torch.ones(<tensor>.shape)|torch.arange(3)[<int> % 3]|torch.tensor(<int>)|torch.full((), <float>)
torch.eye(1) * <float>|<tensor> + <float>|<tensor> * <float>|<tensor> ** 2|<tensor> if <condition> else <tensor>
(<tensor> > 0.137)|<tensor> + torch.rand(())|<list>[<int> % len(<list>)]|<list>[-1]|sum(<list>)|<list>[0] + <tensor>
<dict>['a']|<dict>.get('z', <tensor>)|next(iter(<dict>.values()))|<obj>.weight|<obj>.doubled|<obj>(<tensor>)
<obj>(<tensor>, <tensor>, scale=<float>)|<obj>.method(<tensor>)|<obj> + <tensor>|<tensor> + <obj>|<obj> * <float>
<obj>[<int> % 3]|Thing.halved(<tensor>)|Thing.built(<tensor>).doubled|getattr(<obj>, 'weight')
getattr(<obj>, 'missing', <tensor>)|opaque(<tensor>)|said(<tensor>)|said(<tensor>, text='n%d' % <int>)
joined(<tensor>, <int>)|joined(*<list>, sep=<float>)|joined(<tensor>, **<dict>)|sum(powers(<tensor>, <int>))
list(powers(<tensor>, 2))[-1]|(lambda q, m=<int>: q * m + <tensor>)(<tensor>)|<helper>(<tensor>, <tensor>, <int>)
<helper>(<tensor>, b=<tensor>, k=<int>)|<closure>(<tensor>)|max([<tensor!>, <tensor!>], key=lambda q: q.sum().item())
<tensor>.add(<tensor>, alpha=int(<int>))|[q * <int> for q in <list>][-1]|sum(q.sum() for q in <list>)
[<tensor> + i for i in range(3) if i != <int>][0]|sum({k: v * 2 for k, v in <dict>.items()}.values())
torch.add(<tensor>, <tensor>, alpha=2)|functools.reduce(lambda p, q: p * 0.5 + q, <list>)
list(map(torch.sin, <list>))[0]|<tensor>.masked_fill(<tensor> > 0.137, <float>)
torch.einsum('...i,...j->...ij', <tensor>.float(), <tensor>.float()).sum(-1)
torch.outer(<tensor>.flatten(), x.flatten())[:1]|torch.einsum('ij,jk->ik', <tensor>.float(), <tensor>.float())
torch.matmul(<tensor>.float(), <tensor>.float())
torch.bmm(<tensor>.float().expand(2, n % 3 + 1, 3), torch.ones(2, 3, 3))[0]
torch.addmm(y, <tensor>.float(), <tensor>.float())
torch.nn.functional.linear(<tensor>.float(), torch.eye(<tensor>.shape[-1] if <tensor>.dim() else 1))
torch.nn.functional.conv1d(<tensor>.float().reshape(1, 1, -1), torch.ones(1, 1, 1) * <float>).view(-1)[:1]
torch.nn.functional.conv2d(<tensor>.float().reshape(1, 1, 1, -1), torch.full((1, 1, 1, 1), <float>), padding=1).sum()
torch.nn.functional.max_pool1d(<tensor>.float().reshape(1, 1, -1), 1).flatten()[0]
torch.nn.functional.dropout(<tensor>.float(), 0.5)|<tensor>[torch.tensor([0])]|<tensor>[torch.tensor([0, -1])][:1]
<tensor>[<tensor> > 0.137].sum()|<tensor>[..., torch.tensor([0])]
torch.zeros(4).scatter_add(0, (<tensor>.flatten()[:3] > 0.137).long(), torch.ones(3))[:1]
<tensor>.gather(0, torch.zeros_like(<tensor>, dtype=torch.long))
torch.zeros(4, 2).index_add(0, torch.tensor([0, 1, 0]), torch.ones(3, 2) * <float>)[:1, :1]
<tensor>.take(torch.tensor([0]))|<tensor>.index_select(0, torch.tensor([0]))
torch.take_along_dim(<tensor>, torch.zeros_like(<tensor>).long(), -1)
<tensor>.scatter(-1, torch.zeros_like(<tensor>).long(), <float>)
torch.gather(<tensor>, -1, (<tensor> > 0.137).long() * 0)|<tensor>.long() // 2|<tensor>.long() % 3
<tensor>.long() << 1|(<tensor> > 0.137) & (<tensor> < 1.137)|(<tensor> > 0.137) ^ True|~(<tensor> > 0.137)
(<tensor> > 0.137) + <tensor>|<tensor>.bool() * <float>|<tensor>.long() / 2|<tensor>.int() + <tensor>.long()
<tensor>.long() ** 2|<tensor>.to(torch.uint8) + 1|<tensor>.half() * 2|<tensor> == <tensor>
torch.logical_or(<tensor>, <tensor>)|torch.remainder(<tensor>.float(), 1.7)|torch.floor(<tensor>.float() * 3.3)
torch.sign(<tensor>.float())|torch.round(<tensor>.float() * 2.3)
torch.add(<tensor>, 1, out=torch.empty(0, dtype=torch.float64))|torch.addcmul(<tensor>, <tensor>, <tensor>, value=0.5)
<tensor>.movedim(0, -1)|<tensor>.T|<tensor>.squeeze()|<tensor>.unfold(0, 1, 1)[..., 0]|<tensor>.diagonal(0, 0, -1)
<tensor>.chunk(2)[0]|<tensor>.split(1)[-1]|torch.unbind(<tensor>)[0]|<tensor>.narrow(0, 0, 1)
<tensor>.view(1, -1)[:, :1]|<tensor>[:, None]|<tensor>[..., -1:]|torch.roll(<tensor>, 1, 0)|<tensor>.repeat(2, 1)[:1]
torch.tril(<tensor>)|<tensor>.sort(-1).values|<tensor>.topk(1)[0]|<tensor>.median()
torch.logsumexp(<tensor>.float(), -1)|<tensor>.float().std(-1)|<tensor>.prod(-1)|torch.cumprod(<tensor>.float(), -1)
<tensor>.aminmax().max|<tensor>.float().log_softmax(-1)|torch.nn.functional.silu(<tensor>.float())
torch.nn.functional.mse_loss(<tensor>.float(), <tensor>.float())|torch.nn.functional.softplus(<tensor>.float())
torch.nn.functional.leaky_relu(<tensor>.float(), 0.2)|torch.rand_like(<tensor>.float())|torch.randn(3)[:1] * <tensor>
torch.randint(0, 5, (1,))|torch.bernoulli(torch.full((1,), 0.5))|torch.randperm(3)[:1]
torch.nn.functional.pad(<tensor>.float(), (1, 1))[..., :1]|torch.linspace(0, 1, 3)[<int> % 3]
torch.tensor([[<int>, 2], [3, <int>]])[:1, :1]|torch.as_tensor([<int>, True])[:1]
torch.tensor([<int>, 1.5])[0]|<tensor>[slice(None, None, 2)][:1]|<tensor>[(0, ...)]
<tensor>[<tensor>.shape[0] - 1 if <tensor>.dim() else ...]|torch.as_tensor(<float>) * <tensor>
<tensor>.new_zeros(()) + <int>|torch.broadcast_tensors(<tensor>, <tensor>)[0]|torch.atleast_1d(<tensor>)
<tensor>.fill_diagonal_(0.0).clone()|defaulted(<tensor>)|defaulted(<tensor>, scale=<int>)
defaulted(<tensor>, <float>, extra=<tensor>)|Vector(<tensor>, <int>).sum
(Vector(<tensor>, 1) + Vector(<tensor>, 2)).data|(Vector(<tensor>, <int>) @ <tensor>)|Vector(<tensor>, <int>)(<int>)
-Vector(<tensor>, 2)|sum([*Vector(<tensor>, 2)])|Vector(<tensor>, <int>)[<int> % 2:]|abs(Vector(<tensor>, 1)).data
torch.stack(list(reversed(<list>)), 0)[0]|sorted(<list>, key=lambda q: q.dim())[0]
{k: v for k, v in reversed(<dict>.items())}['a']|dict(zip('pq', <list>)).get('q', <tensor>)|list(<dict>.values())[-1]
(<dict> <or> {'a': <tensor>})['a']|<list>[::-1][0]|<list>[-2:][0]|min(<list>, key=lambda q: q.numel())
next((q for q in <list> if q.dim() > 5), <tensor>)|[*<dict>.values(), <tensor>][<int> % 2]
max(enumerate(<list>), key=lambda p: p[0])[1]
torch.utils.checkpoint.checkpoint(lambda q: q.sin() * <float>, <tensor>.float(), use_reentrant=False)
torch.ones(3, requires_grad=True)|torch.zeros_like(<tensor>.float(), requires_grad=True) + <tensor>
torch.tensor([<float>, 1.5, <int>], requires_grad=True).sin()|torch.full((3,), <float>, requires_grad=True) * <tensor>
torch.rand(3, requires_grad=True)|torch.randn_like(<tensor>.float(), requires_grad=True) * <tensor>
<tensor>.float().new_full((1,), <float>, requires_grad=True) * <tensor>|torch.linspace(0, 1, 3, requires_grad=True) + 1
torch.arange(3.0, requires_grad=True)|torch.eye(1, requires_grad=True) * <tensor>
torch.nn.Parameter(<tensor>.detach().float())
<tensor>.detach().float().requires_grad_() * <tensor>|torch.nn.Linear(3, 1, bias=False).weight[0] * <tensor>
"""

INT = """
<int> + <int>|<int> * 2 % 7|len(<list>)|len(<dict>)|<tensor>.dim()|<tensor>.numel() % 7|<obj>.count|<obj>.level
<obj>.auto_one|len(<obj>)|max(<int>, <int>)|sum([<int>, <int>, 1]) % 5|int(<int> / 2)|abs(<int>)|divmod(<int>, 3)[1]
<int> if <condition> else <int>|int(<condition>)|<int> // 2|-<int>|COUNT|SEEN[-1]|int(<tensor>.sum().item() > 0.137)
len([q for q in <list> if q.dim() == 2])|len(str(<int>))|(<int> & 3) ^ 1|len(set([<int>, <int>]))
<list>.index(<list>[-1]) if False else 1|sorted([<int>, <int>, 2])[0]|min(3, <int>, key=lambda k: -k)
int('%d' % <int>)|hash(<int>) % 5|isinstance(<tensor>, torch.Tensor) + 0|<int> or 2|<tensor>.size(-1) % 3
(walrus := <int>) + walrus|dict(p=<int>, q=2)['p']|list(<dict>).index('a')|next((i for i in range(5) if i > <int>), 4)
any(i == <int> for i in range(3)) + 1|len({<int>, <int>, 2} <or> {3})|sorted({<int> % 4, 1, 2})[-1]
list(dict.fromkeys([<int>, 1, <int>]))[-1]|[3, 1, 2].index(<int> % 3 + 1)|Vector(<tensor>, <int>).count
len(Vector(<tensor>, <int>))|int(Vector(<tensor>, <int>))|Vector(<tensor>, 2) == Vector(<tensor>, <int>)
hash(Vector(<tensor>, <int>)) % 7|<tensor>.stride()[-1] if <tensor>.dim() else 0|<tensor>.element_size()
sum(1 for _ in zip(<list>, range(9)))|len(<tensor>.tolist()) if <tensor>.dim() else 0
int(<tensor>.argmax().item() > 0)|round(<int> / 3)|(lambda *a, k=<int>, **kw: len(a) + k + len(kw))(1, *<list>, z=2)
[i for i in range(9)][<int> % 9]|list(range(9))[::-2][<int> % 5]|'abcd'.find('<key>')|len('%s-%s' % (<int>, flag)) % 5
<int>.bit_length()|bool(<int>) + True|int(str(<int>)) - 1|sum(map(int, '12')) + <int>
len({<tensor!>, <tensor!>})|len({*<list>, <tensor!>})|len(dict.fromkeys([<tensor!>, *<list>]))
{x: 1, <tensor!>: 2}.get(<tensor!>, 5)|len({x, y} <sets> {<tensor!>})|len({id(<tensor!>), id(<tensor!>)})
[id(q) for q in <list>].count(id(<tensor!>))|list(map(id, [x, y, z])).index(id(<list>[-1])) if False else 2
len({*<obj>.marks})|<obj>.marks.index(<obj>.marks[-1])|{obj.marks[0]: <int>}.get(<obj>.marks[1], 3)
len({(q, 1) for q in <obj>.marks})|<obj>.marks.count(obj.marks[0])|len(set(<obj>.marks) <sets> {obj.marks[1]})
"""

CONDITION = """
<int> > 2|<int> == <int>|<int> % 2|<tensor>.sum() > 0.137|<tensor>.float().mean() < <tensor>.float().mean() + 0.013
len(<list>) % 2 == 0|<obj>|<obj>.ready|flag|not flag|flag is None|isinstance(flag, bool)|flag == 'yes'|'b' in <dict>
'z' not in <dict>|<tensor>.dim() == 2|<tensor>.dtype == torch.float32|<tensor!> is <tensor!>|<tensor>.requires_grad
<tensor>.is_contiguous()|<int> > 1 and <tensor>.sum() > 0.137|flag or <int> < 2|<int> in <obj>|0 < <int> < 4
torch.is_grad_enabled()|hasattr(<obj>, 'missing')|<obj> == <obj>|(<tensor> > 0.137).all()|<list>[0] is <tensor!>
<tensor>.shape == <tensor>.shape|torch.is_tensor(<int>)|callable(<obj>)|<tensor>.is_floating_point()
<tensor!> in {<tensor!>, z}|<tensor!> in dict.fromkeys(<list>)|{<tensor!>} <= {x, y}|id(<tensor!>) == id(<tensor!>)
any(q is <tensor!> for q in <list>)|{x}.isdisjoint(<list>)|weakref.ref(<tensor!>) is weakref.ref(<tensor!>)
obj.marks[0] is <obj>.marks[-1]|<obj>.marks[1] in {<obj>.marks[0]}|obj.marks[0] == <obj>.marks[1]
<obj>.marks[1] in <obj>.marks[:1]|(<obj>.marks[0], 1) == (<obj>.marks[1], 1)
<tensor>.shape[-1:] == (3,)|all(q.dim() > 0 for q in <list>)|bool(<dict>) and <int> != 3
"""

SIMPLE = """
<tensor!>.mul_(0.9)|<tensor!>.add_(<tensor>)|<tensor!> += <float>|<tensor!> *= <tensor>|<tensor!>[0] = <float>
<tensor!>[..., 0].add_(1)|<tensor!>.view(-1)[:2].mul_(2)|<tensor!>.t().add_(<float>)|<tensor!>.zero_()
<tensor!>.copy_(<tensor>)|<tensor!>[<tensor!> > 0.137] = 0.5|<tensor!>.clamp_(min=-1)|torch.relu_(<tensor!>)
<tensor!>.detach().add_(1)|<tensor!>[:1] = <tensor>|<tensor!>.fill_(<int>)|<list>[0].add_(1)|<dict>['a'].mul_(0.5)
<obj>.weight.add_(<float>)|<list>.append(<tensor>)|<list>[0] = <tensor>|<list>.insert(0, <tensor>)
<list>.extend([<tensor>, <tensor>])|<list>.reverse()|<list>[1:] = [<tensor>]|<list> += [<tensor>]|<tensor!>.__imul__(2)
if len(<list>) > 1: <list>.pop()|del <list>[1:]|<dict>['<key>'] = <tensor>|<dict>.setdefault('<key>', <tensor>)
<dict>.update(<key>=<tensor>)|<dict>.pop('<key>', None)|<dict>['a'] = <dict>.pop('a')|<obj>.weight = <tensor>
<obj>.count += 1|<obj>.level = <int>|<obj>.log.append(<int>)|<obj>.extra = <int>|setattr(<obj>, 'weight', <tensor>)
obj += <tensor>|<obj>.child = Thing.built(<tensor>)|<obj>.log = [*<obj>.log, <int>]|del <obj>.extra
<obj>.ready = not <obj>.ready|del <dict>['<key>']|print('p', <int>)|print('sum', <tensor>.sum().item())
print('{} {!r:>5}'.format(<int>, <condition>), f'{n:>3}{flag!r}')|print(<tensor>.dtype, <tensor>.requires_grad)
print(sorted(<dict>), len(<list>))|SEEN.append(<int> % 9)|dynajit.graph_break()|torch.manual_seed(<int> % 9 + 9)
assert <condition>, 'assert %d' % <int>|x, y = y, x|x, (n, *_) = <tensor>, (<int>, 1, 2)
first, *others = <list>; x = first + len(others)|n = <int> % 6|n += 1|flag = not flag|x = <tensor>|y = <tensor>
z = <tensor>|<list>.sort(key=lambda q: q.dim())|x = y = <tensor>|a, b = <tensor>, <tensor>; x = a + b
<tensor!>.requires_grad_() if False else None|x = <obj>.weight = <tensor>|table = {**<dict>, '<key>': <tensor>}
items = [*<list>, <tensor>][:3]|items = <list>[::-1]|obj.log.append(obj.count); obj.count = 0|exec('print(1)')
torch.set_grad_enabled(<condition>)|x.note = <int>|print(getattr(x, 'note', None))|<tensor!>.data.add_(1)
x = torch.sin(<tensor>, out=torch.empty(0))|<tensor!>[<tensor!> > 0.137] += <float>
<tensor!>[torch.tensor([0])] = <float>|<tensor!>[..., :1] *= 2|<tensor!>[::2].add_(<tensor>)
<tensor!>.scatter_(0, torch.zeros(1, 1, dtype=torch.long), <float>)
<tensor!>.index_fill_(0, torch.tensor([0]), <float>)|<tensor!>.masked_fill_(<tensor!> > 0.137, <float>)
<tensor!>.index_add_(0, torch.tensor([0]), <tensor>)|<tensor!>.clamp_(-2, 2).mul_(0.5)
<tensor!>.index_put_((torch.tensor([0]),), <tensor>)|<tensor!>.normal_()|<tensor!>.uniform_(0, 1)
<tensor!>.exponential_()|<tensor!>.neg_()|v = <tensor!>.view(-1); v[:1].mul_(2); <tensor!>.add_(v[0].item() > 0.137)
v = <tensor!>[0]; <tensor!>.mul_(0.5); x = v + 1|v = <tensor!>.transpose(0, -1); v.add_(1); x = x + v.sum()
v = <tensor!>.expand(2, *<tensor!>.shape); <tensor!>.mul_(2); y = v[1]|v = <tensor!>.detach(); v.mul_(0.5); y = v
v, w = <tensor!>.clone(), <tensor!>; v.add_(w); z = v|torch.add(<tensor>, 1, out=x)
torch.mul(<tensor>, <tensor>, out=z)|<tensor!>.swapaxes_(0, -1)|<tensor!>.t_()|<tensor!>.unsqueeze_(0)
<tensor!>.squeeze_()|<tensor!> //= 2|<tensor!> -= <tensor>|<tensor!> /= 2|<tensor!> **= 2|<tensor!> %= 2
<tensor!> &= True|<tensor!> @= torch.eye(3)
(x * 2).sum().backward() if x.requires_grad and x.is_floating_point() and torch.is_grad_enabled() else None
w = <tensor>.detach().float().requires_grad_(); (w * w).sum().backward(); x = w.grad
w = <tensor>; x = torch.autograd.grad((w.float() ** 2).sum(), w)[0] if w.requires_grad else x
w = torch.full((3,), <float>, requires_grad=True); (w * <tensor>).sum().backward(); x = w.grad
w = torch.ones(3, requires_grad=True); x = torch.autograd.grad((w * w * <tensor>).sum(), w)[0]; y = w
for k in sorted(<dict>): <dict>[k] = <dict>[k] * 2|for k in list(<dict>): print(k, end=' ')
print(list(<dict>.items())[0][0], {*'ab'} == {*'ba'})|<dict>.pop(next(iter(<dict>)))|<dict>.popitem()
<dict>.clear() if <condition> else None|<dict> <or>= {'<key>': <tensor>}|print([*map(str, sorted({<int>, 3, <int>}))])
seen = {<int>: 'p', <int>: 'q'}; print(seen)|print({k: v.dim() for k, v in <dict>.items()})|<list>[::2] = <list>[::2]
<list>[:0] = [<tensor>]|del <list>[::2]|<list>.remove(<list>[0]) if False else <list>.copy()|<list> *= 1
first, second = <list>|a, *b, c = <list>; x = a + c|(p, q), r = (<tensor>, <tensor>), <int>; x = p + q * r
i = j = <int>; n = i + j|vec = Vector(<tensor>, <int>); vec += 1; x = vec.data
vec = Vector(<tensor>, 2); vec[0] = <tensor>; print(vec)|print(repr(Vector(<tensor>, <int>)))
with Vector(<tensor>, <int>) as vec: x = vec.data|print(Vector(<tensor>, <int>) < Vector(<tensor>, 2))
del Vector(<tensor>, 2).data|for q in Vector(<tensor>, <int>): x = x + q.sum()
print(<int> in Vector(<tensor>, 2), format(str(Vector(<tensor>, 3)), '>12'))
print(defaulted.__defaults__[0], defaulted.__name__)
fns = [lambda q, i=i: q * i for i in range(3)]; x = fns[<int> % 3](x)
fns = [lambda q: q + i for i in range(2)]; x = fns[0](x)|x = functools.partial(defaulted, scale=<int>)(x)
def g(): nonlocal_ = <int>; return nonlocal_|torch.manual_seed(<int> % 9); x = x + torch.rand(3)[0]
print(torch.initial_seed() % 7)|print(torch.get_default_dtype(), x.dtype, y.dtype)
"""

# In programs about breaks these are every third simple statement; they see what a break must not change.
BREAKS = """
dynajit.graph_break()|print('p', <int>)|print('sum', <tensor>.sum().item())|print('exc', sys.exc_info()[:2])
print('context', repr(getattr(sys.exc_info()[1], '__context__', None)))|x = opaque(<tensor>)|x = opaque(x) + y
print(torch.is_grad_enabled(), <int>)|n = int(opaque(<tensor>).sum().item() > 0.137) + n % 5
y = [opaque(q) for q in <list>][-1]|x = x + sum(opaque(q).sum() for q in <list>)|x = said(x)|x = <obj>.method(opaque(x))
t = {k: opaque(v) for k, v in <dict>.items()}.get('a', x)|held = [(dynajit.graph_break(), <int>) for _ in range(2)]
print('n', n, flag)|if x.sum() > 0.137: print('big')|x = x * 2 if y.sum() > 0.137 else x|opaque(x).add_(1)
x = list(map(opaque, <list>))[0]|x = max(<list>, key=lambda q: opaque(q).sum().item())|print('%s' % walrus if 0 else n)
"""

USES = (
    "x = sum(<gen>)",
    "x = next(<gen>)",
    "for q in <gen>: x = x + q.sum()",
    "first, *_ = <gen>; x = first",
    "items.extend(<gen>)",
)
RAISE = (
    "ValueError('value %s' % <int>)",
    "KeyError('<key>')",
    "Oops(<int>)",
    "IndexError",
    "RuntimeError('run', <int>)",
    "StopIteration(<int>)",
)
CATCH = ("ValueError", "(ValueError, KeyError)", "Exception", "LookupError", "Oops", "RuntimeError")
MANAGERS = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "Scope(<obj>)",
    "Scope(<obj>, swallow=True)",
    "Scope(<obj>) as held, torch.no_grad()",
    "contextlib.suppress(ValueError)",
    "contextlib.nullcontext(<tensor>) as held",
    "torch.set_grad_enabled(<condition>)",
    "torch.autocast('cpu', dtype=torch.bfloat16)",
    "torch.autocast('cpu', enabled=<condition>)",
    "torch.autocast('cpu', dtype=torch.bfloat16), torch.no_grad()",
    "torch.inference_mode()",
    "Vector(<tensor>, <int>) as held",
    "contextlib.ExitStack() as stack",
    "contextlib.suppress(RuntimeError, LookupError)",
)
LOOPS = (
    "i in range(<int> % 4)",
    "i, q in enumerate(<list>)",
    "q in <list>",
    "k, q in <dict>.items()",
    "q in powers(<tensor>, <int>)",
    "i, q in zip(range(3), <list>)",
    "q in <tensor!>",
    "q in [<tensor>, <tensor>]",
    "i in [<int>, 2, <int>]",
    "q in reversed(<list>)",
    "k in sorted(<dict>)",
    "q in map(torch.cos, <list>)",
    "i, (p, q) in enumerate(zip(<list>, <list>))",
    "q in <obj>",
    "q in Vector(<tensor>, <int>)",
    "i in sorted({<int> % 4, 1})",
    "k in list({'b': 1, 'a': 2})",
    "i in range(<tensor>.shape[0] if <tensor>.dim() else 1)",
    "i, q in enumerate(<tensor!>.unbind())",
    "k, q in sorted(<dict>.items(), key=lambda p: p[0])",
    "q in (p * 2 for p in <list>)",
)


def _table(text: str) -> list[str]:
    parts = [part for line in text.strip().splitlines() for part in line.split("|") if part]
    return [part.replace("<or>", "|").replace("<sets>", "^") for part in parts]


TABLES = {"tensor": _table(TENSOR), "int": _table(INT), "condition": _table(CONDITION)}
STATEMENTS = _table(SIMPLE)
BREAKING = _table(BREAKS)
BROAD_TABLES = {"tensor": _table(fuzz_broad.TENSOR), "int": _table(fuzz_broad.INT), "condition": []}
BROAD_STATEMENTS = _table(fuzz_broad.SIMPLE)
#: Seeds from here on give programs about breaks in loops, with and try.
REGIONS = 1_000_000
PLACEHOLDER = re.compile(r"<(tensor!?|int|condition|list|dict|obj|float|key|helper|closure)>")

Compound = Callable[["Generator", int], None]
COMPOUNDS: list[tuple[Compound, int]] = []


def compound(weight: int) -> Callable[[Compound], Compound]:
    """Register a compound statement; it is chosen `weight` times as often as one of weight 1."""

    def register(method: Compound) -> Compound:
        COMPOUNDS.append((method, weight))
        return method

    return register


class Generator:
    """Writes one function's lines; `names` holds the variables in scope by kind."""

    def __init__(
        self,
        rng: random.Random,
        names: dict[str, list[str]],
        regions: bool = False,
        broad: bool = False,
        wide: bool = False,
    ) -> None:
        self.rng = rng
        self.regions = regions
        self.broad = broad
        self.wide = wide
        self.names = names
        self.lines: list[str] = []
        self.depth = 1
        self.loops = 0
        self.serial = 0

    # --- expressions

    def fill(self, template: str, depth: int = 0) -> str:
        return PLACEHOLDER.sub(lambda found: self._one(found[1], depth), template)

    def _one(self, kind: str, depth: int) -> str:
        rng = self.rng
        if kind == "float":
            return rng.choice(("0.5", "1.25", "-0.75", "2.0"))
        if kind == "key":
            return rng.choice("abcd")
        if kind in TABLES and (kind == "condition" or rng.random() < 0.3) and depth < 3:
            return f"({self.expression(kind, depth + 1)})"
        names = self.names.get(kind.rstrip("!"), [])
        return rng.choice(names) if names else {"condition": "flag", "int": "2"}[kind]

    def expression(self, kind: str, depth: int = 0) -> str:
        table = TABLES[kind]
        if self.broad and BROAD_TABLES[kind] and self.rng.random() < 0.3:
            table = BROAD_TABLES[kind]
        return self.fill(self.possible(table), depth)

    def possible(self, templates: list[str] | tuple[str, ...]) -> str:
        """A random template whose kinds of variables all exist here."""
        while True:
            template = self.rng.choice(templates)
            kinds = {kind.rstrip("!") for kind in PLACEHOLDER.findall(template)} - {"float", "key", "condition", "int"}
            if all(self.names.get(kind) for kind in kinds) and ("obj" not in template or self.names.get("obj")):
                return template

    # --- statements

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def statement(self, budget: int) -> None:
        chance = self.rng.random()
        if self.regions:
            chance = 0.2 + 0.8 * chance
        if chance < 0.3:
            self.assign("tensor")
        elif chance < 0.38:
            self.assign("int")
        elif chance < 0.68 or budget <= 1 or self.depth > 4:
            self.simple()
        elif self.wide and self.rng.random() < 0.5:
            fuzz_wide.snippet(self, budget)
        elif self.broad and self.rng.random() < 0.4:
            functions, weights = zip(*fuzz_broad.COMPOUNDS)
            self.rng.choices(functions, weights)[0](self, budget)
        else:
            methods, weights = zip(*COMPOUNDS)
            if self.regions:
                weights = tuple(
                    3 * weight if method.__name__ in ("for_", "while_", "try_", "with_") else weight
                    for method, weight in COMPOUNDS
                )
            self.rng.choices(methods, weights)[0](self, budget)

    def assign(self, kind: str) -> None:
        known = [name for name in self.names[kind] if not name.startswith("w")]  # loops' counters: they have to end
        name = self.rng.choice(known) if known and self.rng.random() < 0.4 else self.fresh(kind[0])
        self.emit(f"{name} = {self.expression(kind)}")
        if name not in self.names[kind]:
            self.names[kind].append(name)

    def simple(self) -> None:
        if self.regions and self.rng.random() < 0.4:
            self.emit(self.fill(self.possible(BREAKING)))
            return
        text = self.fill(self.possible(STATEMENTS))
        if self.broad and self.rng.random() < 0.4:
            text = self.fill(self.possible(BROAD_STATEMENTS))
        while self.regions and text.startswith("exec("):
            text = self.fill(self.possible(STATEMENTS))
        if self.rng.random() < 0.35 and not text.startswith("if "):
            self.emit("try:")
            self.emit(f"    {text}")
            self.emit("except (RuntimeError, LookupError, TypeError) as error:")
            self.emit("    print(type(error).__name__)")
        else:
            self.emit(text)

    def block(self, budget: int, **extra: list[str]) -> None:
        """An indented block; the names it binds are forgotten after it, mostly."""
        before = {kind: list(names) for kind, names in self.names.items()}
        for kind, names in extra.items():
            self.names[kind] = self.names[kind] + names
        self.depth += 1
        for _ in range(self.rng.randint(1, max(1, budget))):
            self.statement(budget - 1)
        self.depth -= 1
        if self.rng.random() > 0.03:
            self.names = before

    @compound(4)
    def if_(self, budget: int) -> None:
        self.emit(f"if {self.expression('condition')}:")
        self.block(budget // 2)
        if self.rng.random() < 0.2:
            self.emit(f"elif {self.expression('condition')}:")
            self.block(budget // 2)
        if self.rng.random() < 0.5:
            self.emit("else:")
            self.block(budget // 2)

    def loop_body(self, budget: int, **extra: list[str]) -> None:
        self.loops += 1
        self.block(budget // 2, **extra)
        self.loops -= 1
        if self.rng.random() < 0.3:
            self.emit(f"    if {self.expression('condition')}: {self.rng.choice(('break', 'continue'))}")
            self.emit(f"    {self.fill(self.possible(STATEMENTS))}")
        if self.rng.random() < 0.2:
            self.emit("else:")
            self.block(1)

    @compound(3)
    def for_(self, budget: int) -> None:
        header = self.fill(self.possible(LOOPS))
        # Of a copy: bodies may make the list or the dict longer.
        targets, source = header.split(" in ", 1)
        source = f"list({source})" if "<" not in source and source in ("items", "table.items()", "table") else source
        self.emit(f"for {targets} in {source}:" if "items" not in source else f"for {targets} in list({source})[:4]:")
        words = re.findall(r"\w+", targets)
        self.loop_body(budget, tensor=[w for w in words if w in "qp"], int=[w for w in words if w == "i"])

    @compound(2)
    def while_(self, budget: int) -> None:
        counter = self.fresh("w")
        self.emit(f"{counter} = 0")
        extra = f" and ({self.expression('condition')})" if self.rng.random() < 0.4 else ""
        self.emit(f"while {counter} < {self.rng.randint(1, 4)}{extra}:")
        self.emit(f"    {counter} += 1")
        self.loop_body(budget, int=[counter])

    @compound(2)
    def try_(self, budget: int) -> None:
        self.emit("try:")
        if self.rng.random() < 0.7:
            self.emit(f"    if {self.expression('condition')}: raise {self.fill(self.rng.choice(RAISE))}")
        self.block(budget // 2)
        caught = self.rng.random() < 0.8
        if caught:
            self.emit(f"except {self.rng.choice(CATCH)} as error:")
            self.emit("    print('caught', type(error).__name__, getattr(error, 'code', None))")
            self.block(1)
            if self.rng.random() < 0.2:
                again = f"raise {self.fill(self.rng.choice(RAISE))} from error"
                self.emit(f"    {self.rng.choice(('raise', again))}")
            if self.rng.random() < 0.2:
                self.emit("else:")
                self.block(1)
        if not caught or self.rng.random() < 0.3:
            self.emit("finally:")
            self.block(1)

    @compound(2)
    def with_(self, budget: int) -> None:
        self.emit(f"with {self.fill(self.possible(MANAGERS))}:")
        self.block(budget // 2)

    @compound(2)
    def closure(self, budget: int) -> None:
        """A nested function that reads and may write the variables around it."""
        name = self.fresh("inner")
        self.emit(f"def {name}(q, scale={self.rng.choice(('2', 'n', '0.5'))}):")
        if self.rng.random() < 0.5:
            self.emit("    nonlocal n, x")
            self.emit("    n = (n + 1) % 6")
            if self.rng.random() < 0.5:
                self.emit(f"    x = {self.expression('tensor')}")
        if self.rng.random() < 0.4:
            self.emit(f"    if {self.expression('condition')}: return {self.expression('tensor')}")
        if self.rng.random() < 0.3:
            self.emit("    print('inner', scale)")
        self.emit(f"    return q * scale + {self.expression('tensor')}")
        self.names.setdefault("closure", []).append(name)
        self.emit(f"x = {name}({self.expression('tensor')})")

    @compound(1)
    def generator(self, budget: int) -> None:
        name = self.fresh("gen")
        self.emit(f"def {name}(q):")
        self.emit(f"    yield q + {self.expression('tensor')}")
        self.emit(f"    if {self.expression('condition')}: return")
        self.emit(f"    yield from ({self.expression('tensor')} for _ in range(2))")
        call = f"{name}({self.expression('tensor')})"
        self.emit(self.rng.choice(USES).replace("<gen>", call))

    @compound(1)
    def match_(self, budget: int) -> None:
        self.emit(f"match {self.expression('int')}:")
        self.depth += 1
        for case in self.rng.sample(("0", "1 | 2", "int(k) if k > 3", "-1"), 2) + ["_"]:
            self.emit(f"case {case}:")
            self.block(1)
        self.depth -= 1

    @compound(1)
    def leave(self, budget: int) -> None:
        self.emit(f"if {self.expression('condition')}:")
        self.emit(f"    return {self.expression('tensor')}, n")

    @compound(1)
    def count(self, budget: int) -> None:
        self.emit("COUNT = (COUNT + 1) % 5")


HEADER = "global COUNT"
RESULTS = (
    "items",
    "table",
    "obj",
    "None",
    "[y, y]",
    "{1: x}",
    "x.t()",
    "lambda q: q + x",
    "(x, items)",
    "obj.weight",
    "flag",
    "locals().get('t1')",
    "SEEN",
    "x[0]",
)


def program(seed: int) -> str:
    """The source of a random module: some helpers, and `main(x, y, z, n, flag, items, table, obj)`.

    What Python refuses is drawn again: a template may stand where its kind of expression is not allowed, as `:=` in
    what a comprehension goes through.
    """
    for attempt in itertools.count():
        source = _module(seed, random.Random(f"program {seed}" + f" again {attempt}" * (attempt > 0)))
        with contextlib.suppress(SyntaxError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<fuzz>", "exec")
            return source
    raise AssertionError("unreachable")


def _module(seed: int, rng: random.Random) -> str:
    regions = seed >= REGIONS and (seed < fuzz_broad.BROAD or seed % 2 == 1)
    broad = seed >= fuzz_broad.BROAD
    parts = ["COUNT = 1\nSEEN = [2]\n"]
    helpers: list[str] = []
    for index in range(rng.randint(0, 2)):
        names = {"tensor": ["a", "b", "x"], "int": ["k"], "helper": list(helpers)}
        inner = Generator(rng, names, regions)
        for text in ("global COUNT", "x = y = z = a", "n = k; flag = n > 1"):
            inner.emit(text)
        for _ in range(rng.randint(1, 3)):
            inner.statement(3)
        inner.emit(f"return {inner.expression('tensor')}")
        text = "\n".join(inner.lines)
        if not re.search(r"\b(items|table|obj)\b", text):
            helpers.append(f"helper{index}")
            parts.append(f"def helper{index}(a, b, k=2):\n{text}\n")
    names = {
        "tensor": ["x", "y", "z", "x"],
        "int": ["n"],
        "list": ["items"],
        "dict": ["table"],
        "obj": ["obj"],
        "helper": helpers,
    }
    main = Generator(rng, names, regions, broad, seed >= fuzz_wide.WIDE)
    main.emit(HEADER)
    for _ in range(rng.randint(3, 9)):
        main.statement(6)
    last = rng.choice([result for result in RESULTS if not (regions and "locals" in result)])
    main.emit(f"return x, {main.rng.choice(main.names['tensor'])}, {rng.choice(main.names['int'])}, {last}")
    parts.append("def main(x, y, z, n, flag, items, table, obj):\n" + "\n".join(main.lines) + "\n")
    return "\n\n".join(parts)
