"""Packed operands: weights laid out once in the order in which the runtime's products read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.kernel import Buffer, Role, View


@dataclass(frozen=True)
class Packed:
    """Memory that `kh_prepare` fills. size: C++ for its length in floats; fill: C++ that writes it, `$to` for where.

    source: the buffer that is packed. Two plans whose weights, fill and instruction set are equal may share it.
    """

    name: str
    source: Buffer
    size: str
    fill: str


class PackedOperands:
    """Those of a translation unit, each once. closed: takes none, for kernels that run before anything is packed."""

    def __init__(self, *, closed: bool = False) -> None:
        self._closed = closed
        self._known: dict[tuple[object, ...], Packed] = {}

    def __iter__(self) -> Iterator[Packed]:
        return iter(self._known.values())

    def takes(self, view: View) -> bool:
        """Whether an operand is packed once."""
        return not self._closed and takes(view)

    def add(self, view: View, size: str, fill: str) -> str:
        """The name of an operand's memory."""
        key = (view.buffer, size, fill)
        if key not in self._known:
            self._known[key] = Packed(f"packed{len(self._known)}", view.buffer, size, fill)
        return self._known[key].name


def takes(view: View) -> bool:
    """Whether an operand can be packed once: the same in every call, of a size that is known."""
    roles = {Role.PARAMETER, Role.CONSTANT, Role.PREPARED}
    own = [dim for dim, stride in zip(view.shape, view.strides, strict=True) if stride != 0]
    dims: tuple[Dim, ...] = (view.offset, *own, *view.shape[-2:], *view.strides)
    return view.buffer.role in roles and all(isinstance(dim, int) for dim in dims)
