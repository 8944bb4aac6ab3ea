"""Methods written in C that are bound to a model and not yet called.

In: the model whose method it is, and the method's name, or its function where a class may have another one of that
name. Out: the callable's model.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from dynajit.values.core.value import Direct, Tracer, Value


class BoundMethod(Value):
    """A method written in C of `owner`, not yet called."""

    kind = types.BuiltinMethodType
    child_names: tuple[str, ...] = ("owner",)

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name

    def describe(self) -> str:
        return f"the method {self.name} of {self.owner.describe()}"

    def hash_key(self, tx: Tracer) -> object:
        return (type(self), tx.object_key(self.owner), self.name)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return self.owner.call_method(tx, self.name, args, kwargs)  # type: ignore[no-any-return]

    def rebuild(self, out: Any) -> None:
        out.push(self.owner)
        out.emit.load_attr(self.name)


class BoundBuiltin(BoundMethod):
    """A C method bound to a model, such as `items.append`."""

    child_names = ("owner", "function")

    def __init__(self, owner: Value, name: str, function: Value) -> None:
        super().__init__(owner, name)
        self.function = function

    def py_type(self) -> type:
        in_slot = isinstance(getattr(self.function, "obj", None), types.WrapperDescriptorType)
        return types.MethodWrapperType if in_slot else types.BuiltinMethodType

    def hash_key(self, tx: Tracer) -> object:
        return (BoundBuiltin, tx.object_key(self.owner), self.function.hash_key(tx))

    def getattr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return tx.from_real(self.name)
        return super().getattr(tx, name)

    def call(self, tx: Tracer, args: Sequence[Value], kwargs: dict[str, Value], direct: Direct = None) -> Value:
        return tx.call(self.function, [self.owner, *args], kwargs, direct)

    def rebuild(self, out: Any) -> None:
        """Bound to the very function: by name a subclass's own would be found."""
        out.call_on(bind_descriptor, self.function, self.owner)


def bind_descriptor(function: Any, owner: Any) -> Any:
    """The C function bound to an object, or to a class if it is a class method; in generated code."""
    if isinstance(function, types.ClassMethodDescriptorType):
        return function.__get__(None, owner)
    return function.__get__(owner, type(owner))
