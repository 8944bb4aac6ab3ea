"""Names of backends: registered, built in, from entry points, from torch; unknown ones."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest
import torch

from dynajit.backends import list_backends, lookup_backend, register_backend, registry
from dynajit.exc import ConfigError


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    registered, tags = dict(registry._registered), dict(registry._tags)
    yield
    for name in set(registry._registered) - set(registry._BUILTIN):  # a module registers what is built in only once
        del registry._registered[name]
    registry._registered.update(registered)
    registry._tags.clear()
    registry._tags.update(tags)


def test_built_in_backends_are_listed_and_found() -> None:
    for name in ("eager", "aot_eager", "codegen", "inductor"):
        assert name in list_backends()
        assert callable(lookup_backend(name))


def test_tags() -> None:
    assert "eager" not in list_backends(exclude_tags=("debug",))
    assert "codegen" in list_backends(exclude_tags=("debug",))


def test_a_callable_is_its_own_backend() -> None:
    assert lookup_backend(test_tags) is test_tags


def test_register_as_decorator_by_name_and_by_own_name() -> None:
    @register_backend
    def mine(gm, example_inputs):
        return gm.forward

    @register_backend(name="other", tags=("experimental",))
    def something(gm, example_inputs):
        return gm.forward

    assert lookup_backend("mine") is mine
    assert lookup_backend("other") is something
    assert "other" not in list_backends(exclude_tags=("experimental",))
    assert register_backend(mine, name="again") is mine
    assert lookup_backend("again") is mine


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"'codgen': did you mean codegen.*aot_eager.*codegen.*register_backend"):
        lookup_backend("codgen")


@pytest.mark.parametrize("value", [3, None])
def test_what_is_no_backend(value: object) -> None:
    with pytest.raises(ConfigError, match="name or a callable"):
        lookup_backend(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(ConfigError, match="must be callable"):
            register_backend(value)  # type: ignore[call-overload]


def test_a_nameless_callable_needs_a_name() -> None:
    class Nameless:
        def __call__(self, gm, example_inputs):
            return gm.forward

    with pytest.raises(ConfigError, match="name="):
        register_backend(Nameless())


def test_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("from_package", "dynajit.backends.eager:eager", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: (point,))
    assert "from_package" in list_backends()
    assert lookup_backend("from_package").__name__ == "eager"


def test_backend_registered_with_torch() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    compiled = lookup_backend("eager_noexcept")(gm, [torch.zeros(2)])
    assert compiled(torch.zeros(2))[0].tolist() == [1, 1]
