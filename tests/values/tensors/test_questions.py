"""What a program asks of tensors beside their values: views, classes, attributes, copies, sizes of sparse ones."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._pytree import tree_map_only

import dynajit
from dynajit import graph_break
from dynajit.capture.capture import FrameCapture
from dynajit.outcomes import compare
from dynajit.testing import assert_same


class Labelled(torch.Tensor):
    """A subclass that adds nothing."""


def parts_are_views(x: torch.Tensor) -> list[bool]:
    found = []
    for part in x.tensor_split(3):
        graph_break()
        found.append(part._is_view())
    return found


def test_a_piece_of_a_size_that_varies_is_a_view() -> None:
    assert_same(parts_are_views, torch.ones(8, 2))


def kinds(x: torch.Tensor) -> Any:
    return x + 1, isinstance(x, torch.nn.Buffer), isinstance(x, torch.nn.Parameter)


def _kinds_of(make: Any) -> list[torch.Tensor]:
    return [torch.nn.Buffer(make()), make(), torch.nn.Parameter(make()), make().requires_grad_()]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("make", [lambda: torch.ones(2), lambda: torch.ones(2).as_subclass(Labelled)])
def test_a_buffer_is_one_by_its_mark(make: Any, turned: bool) -> None:
    compiled = dynajit.compile(kinds, backend="eager")
    for x in reversed(_kinds_of(make)) if turned else _kinds_of(make):
        assert compiled(x)[1:] == kinds(x)[1:]


def parameter_of_a_subclass(x: torch.Tensor) -> Any:
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight = torch.nn.Parameter(layer.weight.as_subclass(Labelled))
    return type(layer.weight), isinstance(layer.weight, torch.nn.Parameter), len(list(layer.parameters())), x + 1


def test_an_instance_of_a_subclass_becomes_a_parameter() -> None:
    assert_same(parameter_of_a_subclass, torch.ones(2))


class Boxed(torch.Tensor):
    """Holds a tensor, and says nothing of how to take it apart."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype, requires_grad=True)
        made.inside = inside.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Boxed, lambda boxed: boxed.inside, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Boxed, func(*args, **kwargs))


def boxed_parameter(x: torch.Tensor) -> Any:
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight = torch.nn.Parameter(Boxed(torch.ones(2, 2)))
    return type(layer.weight).__name__, list(layer._parameters), x + 1


def uninitialized_buffer(x: torch.Tensor) -> Any:
    layer = torch.nn.Module()
    layer.mean = torch.nn.parameter.UninitializedBuffer()
    return list(layer._buffers), x + 1


@pytest.mark.parametrize("program", [boxed_parameter, uninitialized_buffer])
def test_a_module_knows_parameters_and_buffers_that_no_graph_takes(program: Any) -> None:
    assert_same(program, torch.ones(2))


def names_of_the_class_alone(x: torch.Tensor) -> Any:
    found = []
    for name in ("__name__", "__mro__", "__qualname__", "mro", "__doc__", "__module__"):
        try:
            found.append(getattr(x, name))
        except AttributeError:
            found.append(name)
    return found, x + 1


def own_attributes(x: torch.Tensor) -> Any:
    x.label = "a"
    graph_break()
    return x.__dict__, x + 1


@pytest.mark.parametrize("program", [names_of_the_class_alone, own_attributes])
def test_a_tensor_has_not_the_attributes_of_its_class(program: Any) -> None:
    assert_same(program, torch.ones(2))


def copied(x: torch.Tensor) -> Any:
    made = copy.deepcopy(x)
    return made, made.grad, getattr(made, "label", None)


def test_a_copy_has_the_gradient_and_the_attributes() -> None:
    given, labelled = torch.zeros(3), torch.zeros(3)
    given.grad, labelled.label = torch.ones(3), "a"  # type: ignore[attr-defined]
    compiled = dynajit.compile(copied, backend="eager")
    for x in (torch.zeros(3), given, labelled, torch.zeros(3)):
        compare(compiled(x), copied(x), "copy", exact=True)


@pytest.mark.parametrize("condition", [True, False, 1, "x", None, torch.tensor(True)])
def test_the_condition_of_a_check_is_a_bool(condition: Any) -> None:
    def checked(x: torch.Tensor, condition: Any) -> Any:
        try:
            torch._check(condition)
        except (TypeError, RuntimeError) as error:
            return type(error)
        return x + 1

    assert_same(checked, torch.ones(2), condition)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storage_s_class_of_old() -> None:
    assert_same(lambda x: (x.storage_type(), x + 1), torch.ones(2, dtype=torch.bfloat16))


def of_the_storage(x: torch.Tensor) -> Any:
    storage = x.untyped_storage()
    found = [storage.filename is None, storage.device == x.device, storage.is_cuda, storage.nbytes()]
    return found, hasattr(storage, "shape"), x + 1


def test_a_storage_s_attributes_are_no_methods() -> None:
    assert_same(of_the_storage, torch.ones(2))


def warned(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.range(0, x.dim())
    return [str(one.message)[:20] for one in told], x + 1


def test_an_operation_warns_though_its_result_is_unused() -> None:
    assert_same(warned, torch.ones(2))


def reduced(x: torch.Tensor) -> Any:
    try:
        torch.logsumexp(x, dim=-1)
    except RuntimeError as error:
        return str(error)
    return "reduced"


def test_more_dimensions_than_kernels_take() -> None:
    x = torch.ones([1] * 65)  # too many for torch's own comparison, too
    assert dynajit.compile(reduced, backend="eager")(x) == reduced(x) != "reduced"


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "count",
    [
        lambda x: x.to_sparse()._nnz(),
        lambda x: x.to_sparse()._values().shape,
        lambda x: x.to_sparse().is_coalesced(),
        lambda x: (x.to_sparse() + x.to_sparse().t())._nnz(),
        lambda x: torch.sparse.sum(x.to_sparse(), 0)._nnz(),
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), x[0, :2], (2, 2)).coalesce().values() * 2,
        lambda x: x.to_sparse_csc().values().shape,
    ],
)
def test_how_many_elements_a_sparse_tensor_has(count: Any) -> None:
    assert_same(lambda x: (count(x), x * 2), torch.eye(4))


def test_a_quantized_dtype_knows_no_sign() -> None:
    def signed(x: torch.Tensor) -> Any:
        try:
            return torch.quint8.is_signed
        except RuntimeError as error:
            return str(error), x + 1

    assert_same(signed, torch.ones(2), graphs=1)


_SAID = (bool, int, float, str, torch.dtype, torch.device, torch.Size)
# addresses, and what takes the tensor to somewhere else
_NOT_ASKED = {"_cdata", "const_data_ptr", "data_ptr", "mutable_data_ptr", "share_memory_", "pin_memory", "storage"}


def _said_by(tensor: torch.Tensor, name: str) -> Any:
    try:
        found = getattr(tensor, name)
        return found() if callable(found) else found
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, AssertionError) as error:
        return type(error)


def _sayings() -> list[str]:
    """The attributes of tensors, and methods without arguments, that give no tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [name for name in dir(torch.Tensor) if name[:2] != "__" and name not in _NOT_ASKED]
        return [name for name in names if isinstance(_said_by(torch.ones(2, 2), name), _SAID)]


@pytest.mark.parametrize("name", _sayings())
def test_what_tensors_say_of_themselves_as_sizes_vary(name: str) -> None:
    def said(x: torch.Tensor) -> Any:
        return _said_by(x, name), _said_by(x * 2, name)

    compiled = dynajit.compile(said, backend="eager")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for size in (3, 4, 5):
            x = torch.ones(size, size)
            assert said(x.clone()) == compiled(x.clone())
    assert not [each for each in heard if "dynajit failed" in str(each.message)]


def _made(kind: str) -> Any:
    made = {"Tensor": torch.rand(1, 1, 8, 8), "List[int]": [8], "int": 0, "float": 0.5, "bool": False, "number": 1}
    return made.get(kind)


def _operators_that_give_numbers() -> list[Any]:
    """Functions of torch that give numbers, and what to call them with."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        takes = [str(argument.type) for argument in schema.arguments if not argument.has_default_value()]
        gives = [str(result.type) for result in schema.returns]
        if space == "aten" and takes[:1] == ["Tensor"] and {"int", "bool", "float"}.intersection(gives):
            function = getattr(torch, name, None)
            if callable(function) and "Tensor" not in gives:
                found[f"{name}.{schema.overload_name}"] = (function, takes)
    return [pytest.param(*each, id=name) for name, each in found.items()]


@pytest.mark.parametrize(("function", "kinds"), _operators_that_give_numbers())
def test_a_number_that_torch_gives_is_that_of_the_real_tensors(function: Any, kinds: list[str]) -> None:
    arguments = [_made(kind) for kind in kinds]

    def asked(x: torch.Tensor) -> Any:
        try:
            return function(x, *arguments[1:]), function(x * 2, *arguments[1:])
        except (RuntimeError, TypeError, NotImplementedError) as error:
            return type(error)

    compiled = dynajit.compile(asked, backend="eager")
    for x in (arguments[0], torch.zeros(1, 1, 8, 8), torch.ones(1, 2, 4, 8), torch.ones(1)):
        assert asked(x) == compiled(x)


@torch.library.custom_op("dynajit_test_questions::positive", mutates_args=())
def positive(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@positive.register_fake
def _(x: torch.Tensor) -> int:
    return 0


@torch.library.custom_op("dynajit_test_questions::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return x * 2, float(x.sum())


@doubled.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return torch.empty_like(x), 0.0


def of_operators(x: torch.Tensor) -> Any:
    return x + positive(x), doubled(x + 1)


def test_a_number_that_an_operator_gives_is_not_its_fake_kernels() -> None:
    assert_same(of_operators, torch.ones(3))


def _asks(name: str) -> Any:
    def ask(x: Any) -> Any:
        found = getattr(x, name)
        return found() if callable(found) else found

    return ask


QUESTIONS = {
    f"{home.__name__}.{name}": getattr(home, name)
    for home in (torch, torch._C, torch._C._functorch)
    for name in dir(home)
    if name.startswith(("is_", "_is_", "maybe_get_", "get_autocast")) and callable(getattr(home, name))
} | {
    name: _asks(name)
    for name in dir(torch.Tensor)
    if name.startswith(("is_", "_is_", "ndim", "dtype", "layout", "_version", "output_nr")) and not name.endswith("_")
}


def _functional(x: torch.Tensor) -> torch.Tensor:
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(x)


KINDS: dict[str, Any] = {  # of tensors, and what is none
    "plain": lambda x: x,
    "parameter": torch.nn.Parameter,
    "batched": lambda x: torch._C._functorch._add_batch_dim(x, 0, 1),
    "functional": torch._to_functional_tensor,
    "functional in Python": _functional,
    "fake": lambda x: FakeTensorMode().from_tensor(x),
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "meta": lambda x: x.to("meta"),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative": torch._neg_view,
    "zero": lambda x: torch._efficientzerotensor(x.shape),
    "text": lambda x: "cpu",
    "number": lambda x: 3,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_answered_of_tensors_of_every_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Exception] = []
    monkeypatch.setattr(FrameCapture, "_internal_error", lambda capture, error: faults.append(error))
    found: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, question in QUESTIONS.items():
        asked = KINDS[kind](torch.linspace(-1, 1, 12).reshape(3, 4))
        for call, answers in ((question, expected), (_compiled(question), found)):
            try:
                answer = call(asked)
            except Exception as error:
                answer = type(error), str(error).splitlines()[0]
            answers[name] = answer if not isinstance(answer, torch.Tensor) else type(answer)
    assert found == expected
    assert not faults


def _compiled(question: Any) -> Any:
    return dynajit.compile(lambda x: question(x), backend="eager")


def test_the_kernel_that_attention_chooses_is_the_device_s() -> None:
    assert_same(lambda q: (torch._fused_sdp_choice(q, q, q), q + 1), torch.ones(1, 1, 4, 8))
