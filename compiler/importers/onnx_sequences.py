"""Values of an ONNX graph that are no tensors: a sequence, or an optional that holds nothing.

The IR has tensors only. So a sequence is a list of values while a model is imported, of a length that is known then,
and no op of the IR ever sees it; at the borders (inputs, outputs, regions) it is spread over several values, named
"name.0", "name.1" and so on. An optional that holds something is what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.importers.onnx_messages import ElementType, TensorType, TypeProto
from kernels_hub.compiler.importers.onnx_types import element_type, type_proto
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.types import DType


@dataclass(frozen=True)
class TensorSequence:
    """Values of one dtype, of any shapes."""

    dtype: DType
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        for index, value in enumerate(self.values):
            if value.dtype is not self.dtype:
                raise TypeRuleError(f"element {index} of a sequence of {self.dtype} is {value.type}")

    @property
    def type(self) -> str:
        """As messages show it: sequence(float32[2, 3], float32[4])."""
        return f"sequence({', '.join(str(value.type) for value in self.values) or f'no {self.dtype}'})"


@dataclass(frozen=True)
class Nothing:
    """An optional that holds nothing."""

    type: str = "empty optional"


Named = Value | TensorSequence | Nothing
"""What a name stands for."""


def part_name(name: str, place: int) -> str:
    """An element of a sequence, as an input or output of the graph."""
    return f"{name}.{place}"


def parts(name: str, named: Named) -> Iterator[tuple[str, Value]]:
    """The values that something consists of, and their names."""
    if isinstance(named, Value):
        yield name, named
    elif isinstance(named, TensorSequence):
        for index, value in enumerate(named.values):
            yield part_name(name, index), value


def flat(all_: Sequence[Named]) -> list[Value]:
    """The values that several consist of, one after the other."""
    return [value for named in all_ for _, value in parts("", named)]


def regrouped(like: Sequence[Named], values: Sequence[Value]) -> list[Named]:
    """The opposite of `flat`: values put together as `like` is."""
    left = iter(values)
    return [
        next(left)
        if isinstance(named, Value)
        else TensorSequence(named.dtype, tuple(next(left) for _ in named.values))
        if isinstance(named, TensorSequence)
        else named
        for named in like
    ]


def same_parts(a: Named, b: Named) -> bool:
    """Whether two are both tensors, both empty, or sequences of one length and dtype."""
    if isinstance(a, TensorSequence) and isinstance(b, TensorSequence):
        return a.dtype is b.dtype and len(a.values) == len(b.values)
    return type(a) is type(b) and not isinstance(a, TensorSequence)


def proto_of(named: Named | None) -> TypeProto:
    """Its type as ONNX writes it; an empty one where nothing can be said."""
    if isinstance(named, Value):
        return type_proto(named.type)
    if isinstance(named, TensorSequence):
        element = TypeProto(tensor_type=TensorType(elem_type=element_type(named.dtype)))
        return TypeProto(sequence_type=ElementType(elem_type=element))
    return TypeProto()
