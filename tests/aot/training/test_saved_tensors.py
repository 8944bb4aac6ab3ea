"""Forward keeps for backward what it needs, in as few bytes as that takes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.aot import pipeline
from dynajit.torch_compat import memory_of

BACKENDS = ("aot_eager", "codegen")


@pytest.fixture
def kept(monkeypatch):
    """Bytes of memory that forward keeps besides its inputs and results, of each graph compiled."""
    found = []
    shrink_saved_tensors = pipeline.shrink_saved_tensors

    def noting(forward, backward, n_results):
        shrink_saved_tensors(forward, backward, n_results)
        outputs = forward.graph.find_nodes(op="output")[0].args[0]
        others = [*forward.graph.find_nodes(op="placeholder"), *(node for node in outputs[:n_results] if node)]
        memories = {memory_of(node.meta["val"]): node.meta["val"] for node in (*outputs[n_results:], *others)}
        for node in others:
            memories.pop(memory_of(node.meta["val"]), None)
        found.append(sum(value.untyped_storage().nbytes() for value in memories.values()))

    monkeypatch.setattr(pipeline, "shrink_saved_tensors", noting)
    return found


def gradients(fn, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    result = fn(*inputs)
    return result, torch.autograd.grad(result.sum(), inputs)


def assert_equal(fn, backend, *inputs):
    compiled = dynajit.compile(fn, backend=backend)
    for mine, eager in zip(gradients(compiled, *inputs), gradients(fn, *inputs), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_relu_keeps_where_it_is_zero(backend, kept):
    x = torch.randn(8, 8)
    x[0, 0], x[0, 1], x[0, 2] = float("nan"), 0.0, -0.0
    assert_equal(lambda x, w: (F.relu(x @ w) * 3.0).cumsum(1), backend, x, torch.eye(8))
    assert kept == [8 * 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_relu_that_is_kept_for_itself_stays(backend, kept):
    assert_equal(lambda x, w: F.relu(x @ w) @ w, backend, torch.randn(8, 8), torch.randn(8, 8))
    assert kept == [8 * 8 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", (0, 1))
def test_pieces_of_what_is_kept_are_not_kept(backend, dim, kept):
    def fn(x, w):
        both = torch.cat([F.relu(x @ w), x.abs(), F.relu(w @ x)], dim)
        return both @ both.T

    assert_equal(fn, backend, torch.randn(8, 8), torch.randn(8, 8))
    assert kept == [3 * 8 * 8 * 4]


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x.pow(3)))),
    "swish": lambda x: x * torch.sigmoid(x),
    "squared": lambda x: torch.sigmoid(x).square() * x.exp(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_an_activation_written_out_its_input_is_kept(name, kept):
    """Autograd saves what some of its operations give, detached."""
    assert_equal(lambda x, w: ACTIVATIONS[name](x @ w).cumsum(1), "codegen", torch.randn(8, 8), torch.randn(8, 8))
    assert kept == [8 * 8 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_of_a_projection_times_a_number_is_not_kept_beside_the_projection(backend, kept):
    def fn(x, w):
        query, key, value = (x @ w).chunk(3, 1)
        return ((query * 0.3) @ key.T).softmax(1) @ value

    assert_equal(fn, backend, torch.randn(8, 8), torch.randn(8, 24))
    assert kept == [8 * 24 * 4 + 8 * 8 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_square_that_a_call_reads_is_not_kept_beside_what_it_is_made_of(backend, kept):
    def fn(x, w):
        y = F.conv2d(x, w)
        return F.conv2d(y * y, w) + F.conv2d(y, w)

    assert_equal(fn, backend, torch.randn(2, 1, 12, 12), torch.randn(1, 1, 3, 3))
    assert kept == [2 * 10 * 10 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_pooling_keeps_narrow_places_and_no_input(backend, kept):
    def fn(x, w):
        return F.max_pool2d(F.relu(F.conv2d(x, w)), 2)

    assert_equal(fn, backend, torch.randn(2, 3, 10, 10), torch.randn(4, 3, 3, 3))
    assert kept == [2 * 4 * 8 * 8 + 2 * 2 * 4 * 4 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("pool", "dims"),
    [
        *((lambda x: F.avg_pool2d(x, 2), 2), (lambda x: F.avg_pool3d(x, 2), 3)),
        *((lambda x: F.adaptive_avg_pool2d(x, 3), 2), (lambda x: F.adaptive_avg_pool3d(x, 3), 3)),
        *((lambda x: F.adaptive_max_pool2d(x, 3), 2), (lambda x: F.adaptive_max_pool3d(x, 3), 3)),
        (lambda x: F.max_pool3d(x, 3), 3),
        *((partial(F.pad, pad=(1, 2) * n, mode=mode), n) for n in (1, 2, 3) for mode in ("reflect", "replicate")),
    ],
)
def test_of_what_is_pooled_or_padded_the_shape_is_not_kept(backend, pool, dims, kept):
    x = torch.linspace(-9, 9, 12 * 8**dims).sin().view(3, 4, *[8] * dims)

    def fn(x):
        return pool(F.relu(x)).sum()

    assert_equal(fn, backend, x)
    places = 12 * 3**dims * 8  # of maximums
    assert kept[0] <= x.numel() + places


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_in_large_planes_have_32_bits(backend, kept):
    x = torch.zeros(1, 1, 200, 200)
    x[..., 199, 199] = 1.0
    assert_equal(lambda x: F.max_pool2d(x * 2.0, 4) * 3.0, backend, x)
    assert kept == [4 * 50 * 50]


def test_bounds_are_seen_from_the_clamped_value(kept):
    x = torch.randn(1, 1, 8, 8) * 4
    x[0, 0, 0, 0] = 6.0
    w, v = torch.ones(1, 1, 1, 1), torch.randn(1, 1, 2, 2)
    for in_place in (False, True):  # there autograd keeps a copy of what the clamp was given
        kept.clear()
        assert_equal(lambda x, w, v: F.conv2d(F.relu6(F.conv2d(x, w), in_place), v), "codegen", x, w, v)  # noqa: B023
        assert kept == [8 * 8 * 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_returned_stays(backend):
    def fn(x, w):
        y = F.relu(x @ w)
        return torch.cat([y, y * 2])

    def changed(x, w):
        result = compiled(x, w)
        result.mul_(2)
        return result

    compiled = dynajit.compile(fn, backend=backend)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(gradients(changed, x, w), gradients(lambda x, w: fn(x, w).mul_(2), x, w))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("affine", (True, False))
@pytest.mark.parametrize("act", (F.silu, F.gelu, torch.tanh))
def test_what_a_batch_norm_gives_is_computed_again(backend, affine, act, kept):
    def fn(x, w, scale, shift):
        running = torch.zeros(4), torch.ones(4)
        y = F.batch_norm(F.conv2d(x, w), *running, *((scale, shift) if affine else ()), training=True)
        return act(y) * scale.sum() * shift.sum()

    x, w = torch.randn(2, 3, 10, 10), torch.randn(4, 3, 3, 3)
    assert_equal(fn, backend, x, w, torch.rand(4) + 0.5, torch.randn(4))
    plane = 2 * 4 * 8 * 8 * 4
    assert kept[0] < 2 * plane + 256  # the convolution's result and, for `scale`, what `act` gives


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_a_rounding_would_count_what_a_batch_norm_gives_stays(backend, kept):
    def fn(x, w):
        y = F.batch_norm(F.conv2d(x, w), torch.zeros(4), torch.ones(4), training=True)
        return torch.where(y > 0.5, y * y, y * 0.1) * w.sum()

    assert_equal(fn, backend, torch.randn(2, 3, 10, 10), torch.randn(4, 3, 3, 3))
    assert kept[0] >= 2 * 4 * 8 * 8 * 4 * 2


def classify(x, w, target, dtype=None):
    scores = x @ w
    return scores, F.cross_entropy((scores if dtype is None else scores.to(dtype)).view(-1, w.shape[1]), target)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_scores_that_are_returned_are_what_cross_entropy_keeps(backend, dtype, kept):
    x, w = torch.randn(4, 32, 16, dtype=dtype), torch.randn(16, 600, dtype=dtype)
    target = torch.randint(0, 600, (4 * 32,))
    target[3] = -100

    def both(fn):
        inputs = [each.detach().clone().requires_grad_() for each in (x, w)]
        scores, loss = fn(*inputs, target, torch.float32)
        loss.backward()
        return scores, loss, *(each.grad for each in inputs)

    for mine, eager in zip(both(dynajit.compile(classify, backend=backend)), both(classify), strict=True):
        rtol = 1e-5 if dtype is torch.float32 else 1e-2
        torch.testing.assert_close(mine, eager, rtol=rtol, atol=rtol)
    assert kept[0] < 4 * 32 * 600 * dtype.itemsize / 4  # two numbers for each row, and views of inputs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("written", (False, True))
def test_what_losses_by_rows_and_columns_are_of_is_kept_once(backend, written, kept):
    def fn(x, y):
        scores = x @ y.t() / 0.07
        if written:
            scores = scores.clone().relu_()
        target = torch.arange(len(x))
        return F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target) + scores.log_softmax(0)[0, 3]

    assert_equal(fn, backend, torch.randn(60, 16), torch.randn(60, 16))
    assert kept[0] < (2.3 if written else 1.6) * 60 * 60 * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_an_input_that_may_be_written_log_softmaxes_are_kept(backend):
    def run(fn):
        x = torch.linspace(-3, 3, 60 * 60).sin().view(60, 60).requires_grad_()
        given = x * 1
        loss = fn(given)
        with torch.no_grad():
            given.zero_()
        loss.backward()
        return loss, x.grad

    def losses(x):
        return (x.log_softmax(0) * x.log_softmax(1).sin()).sum()

    for mine, eager in zip(run(dynajit.compile(losses, backend=backend)), run(losses), strict=True):
        torch.testing.assert_close(mine, eager)


def add_one(scores):
    with torch.no_grad():
        scores.add_(1)


WRITES = {
    "in place": add_one,
    "past autograd": lambda scores: scores.data.mul_(2),
    "as an array": lambda scores: scores.detach().numpy().fill(0),
    "through a view": lambda scores: scores.detach().view(-1)[5:].zero_(),
    "by another graph": torch.no_grad()(dynajit.compile(lambda scores: scores.mul_(3))),
    "of a smaller memory": lambda scores: scores.detach().untyped_storage().resize_(0),
    "of a larger memory": lambda scores: scores.detach().untyped_storage().resize_(scores.nbytes * 2),
    "in shared memory": lambda scores: scores.detach().share_memory_().zero_(),
    "nothing": lambda scores: None,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", WRITES)
def test_scores_may_be_written_before_backward(backend, write):
    x, w, target = torch.randn(300, 16), torch.randn(16, 600), torch.randint(0, 600, (300,))
    compiled = dynajit.compile(classify, backend=backend)

    def run(fn):
        weight = w.clone().requires_grad_()
        scores, loss = fn(x, weight, target)
        WRITES[write](scores)
        loss.backward()
        emptied = scores.untyped_storage().nbytes() == 0
        return scores.shape if emptied else scores.detach().clone(), weight.grad

    eager = run(classify)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), eager)


@pytest.mark.parametrize("triangle", [torch.tril, torch.triu])
@pytest.mark.parametrize("backend", BACKENDS)
def test_triangles_of_decays(kept, backend, triangle):
    """They are computed again, of the sums that are kept."""

    def fn(gates, scores):
        total = F.logsigmoid(gates).cumsum(-1)
        return triangle((total[:, None] - total[None]).clamp(max=0).exp(), 1) * scores

    gates, scores = torch.randn(50), torch.randn(50, 50)
    expected = gradients(fn, gates, scores)
    actual = gradients(dynajit.compile(fn, backend=backend), gates, scores)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert kept[0] <= 4 * 50 * 4, kept


def test_triangles_of_products_are_kept(kept):
    """A product is no less than the triangle."""

    def fn(x, y):
        return (torch.tril(x @ y) * y).tanh()

    x, y = torch.randn(40, 40), torch.randn(40, 40)
    actual = gradients(dynajit.compile(fn, backend="codegen"), x, y)
    torch.testing.assert_close(actual, gradients(fn, x, y), rtol=1e-4, atol=1e-5)
    assert kept == [40 * 40 * 4]
