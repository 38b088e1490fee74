"""Engines in C: shared libraries behind the ABI of `kernels_hub_engine.h`, version 1.

Graphs reach them as arrays of structs, with sizes that are numbers. A plan is written as its graph, and compiled again
where it is loaded.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import (
    CompiledPlan,
    Decline,
    Device,
    KnobValue,
    Note,
    Signature,
    StepProfile,
    Support,
)
from kernels_hub.compiler.engines.payload import pack_graph, unpack_graph
from kernels_hub.compiler.engines.reference import refuse_knobs, signature_of, without_weights
from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.ir.types import Array
from kernels_hub.escaping import json_text

ABI_MAJOR, ABI_MINOR = 1, 0
HEADER = Path(__file__).with_name("kernels_hub_engine.h")

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""In the order of `enum kh_dtype`."""
_NOTES = (Note.REDUCED_PRECISION, Note.NONDETERMINISTIC, Note.NEEDS_COMPILER, Note.SLOW)
_REASON = 1024
_LEAVES = frozenset({"input", "parameter", "constant"})

_Index = ctypes.POINTER(ctypes.c_int32)


class _Value(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32), ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )  # fmt: skip


class _Node(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_char_p), ("attributes", ctypes.c_char_p), ("operand_count", ctypes.c_int32),
        ("operands", _Index), ("result_count", ctypes.c_int32), ("results", _Index),
    )  # fmt: skip


class _Graph(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
        ("value_count", ctypes.c_int32), ("values", ctypes.POINTER(_Value)),
        ("node_count", ctypes.c_int32), ("nodes", ctypes.POINTER(_Node)),
        ("input_count", ctypes.c_int32), ("inputs", _Index), ("output_count", ctypes.c_int32), ("outputs", _Index),
    )  # fmt: skip


class _Answer(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("notes", ctypes.c_uint32), ("workspace", ctypes.c_int64))


_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "name": (ctypes.c_char_p, ()),
    "check": (
        ctypes.c_int,
        (ctypes.POINTER(_Graph), ctypes.c_char_p, ctypes.POINTER(_Answer), ctypes.c_char_p, ctypes.c_size_t),
    ),
    "compile": (
        ctypes.c_void_p,
        (ctypes.POINTER(_Graph), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "workspace": (ctypes.c_int64, (ctypes.c_void_p,)),
    "execute": (
        ctypes.c_int,
        (ctypes.c_void_p,) * 4 + (ctypes.c_char_p, ctypes.c_size_t),
    ),
    "free": (None, (ctypes.c_void_p,)),
}
"""Name, after "kh_engine_" -> the type of the result, and those of the arguments."""


def native_engine(path: Path) -> NativeEngine:
    """The engine in a shared library. Raises EngineError for what is no plugin, or one of another version."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"the library does not load: {error}") from error
    try:
        abi = library.kh_engine_abi
    except AttributeError:
        raise EngineError("it exports no kh_engine_abi: build it with kernels_hub_engine.h") from None
    abi.restype, abi.argtypes = ctypes.c_uint32, ()
    major, minor = divmod(int(abi()), 1 << 16)
    if major != ABI_MAJOR or minor > ABI_MINOR:
        raise EngineError(
            f"it was built for version {major}.{minor} of the engine ABI, this kernels_hub has "
            f"{ABI_MAJOR}.{ABI_MINOR}: build it with {HEADER.name} of this version"
        )
    if missing := [name for name in _FUNCTIONS if not hasattr(library, f"kh_engine_{name}")]:
        raise EngineError(f"it exports no kh_engine_{missing[0]}")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"kh_engine_{name}")
        function.restype, function.argtypes = result, arguments
    return NativeEngine(library)


class NativeEngine:
    """A loaded plugin."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.name = (library.kh_engine_name() or b"").decode(errors="replace")

    def check(self, graph: Graph, device: Device) -> Support | Decline:
        """What the plugin says."""
        if isinstance(lowered := _lowered(graph), Decline):
            return lowered
        answer, reason = _Answer(ctypes.sizeof(_Answer)), ctypes.create_string_buffer(_REASON)
        if self.library.kh_engine_check(
            ctypes.byref(lowered.graph), device.type.encode(), ctypes.byref(answer), reason, _REASON
        ):
            return Decline(_text(reason) or f"engine {self.name} gave no reason")
        notes = frozenset(note for bit, note in enumerate(_NOTES) if answer.notes >> bit & 1)
        return Support(notes, workspace=answer.workspace)

    def compile(self, graph: Graph, device: Device, knobs: Mapping[str, KnobValue]) -> CompiledPlan:
        """A plan of the plugin."""
        refuse_knobs(self.name, knobs)
        lowered = _lowered(graph)
        if isinstance(lowered, Decline):
            raise EngineError(f"engine {self.name} does not take graph {graph.name}: {lowered.reason}")
        return NativePlan(self, graph, device, lowered)

    def load(self, payload: bytes, device: Device) -> CompiledPlan:
        """What `serialize` wrote."""
        return self.compile(unpack_graph(payload, self.name, device).graph, device, {})


class NativePlan:
    """A plan of a plugin; freed with this object."""

    def __init__(self, engine: NativeEngine, graph: Graph, device: Device, lowered: _Lowered) -> None:
        self._plan: int | None = None
        self._library, self.engine, self.signature = engine.library, engine.name, signature_of(graph)
        self._graph, self._device, self._kept = graph, device, lowered
        reason = ctypes.create_string_buffer(_REASON)
        self._plan = self._library.kh_engine_compile(
            ctypes.byref(lowered.graph), device.type.encode(), reason, _REASON
        )
        if not self._plan:
            raise EngineError(_text(reason) or "it gave no plan and no reason")

    def __del__(self) -> None:
        """Free the plugin's plan."""
        if self._plan:
            self._library.kh_engine_free(self._plan)

    def workspace_size(self, sizes: Mapping[str, int]) -> int:  # noqa: ARG002  (the protocol's)
        """What the plugin says."""
        return int(self._library.kh_engine_workspace(self._plan))

    def execute(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: torch.Tensor | None = None,
        stream: int | None = None,  # noqa: ARG002  (the protocol's)
    ) -> None:
        """See `CompiledPlan`."""
        held = [tensor.contiguous() for tensor in inputs]
        needed = self.workspace_size({})
        if workspace is None and needed > 0:
            block = torch.empty(needed + 64, dtype=torch.uint8)
            workspace = block[-block.data_ptr() % 64 :]
        reason = ctypes.create_string_buffer(_REASON)
        failed = self._library.kh_engine_execute(
            self._plan,
            _addresses(held),
            _addresses(outputs),
            None if workspace is None or needed <= 0 else workspace.data_ptr(),
            reason,
            _REASON,
        )
        if failed:
            raise EngineError(_text(reason) or f"kh_engine_execute returned {failed}")

    def serialize(self) -> bytes:
        """The graph with its weights."""
        return pack_graph(self._graph, self.engine, self._device, {})

    def profile(self, inputs: Sequence[torch.Tensor], repeats: int = 10) -> list[StepProfile]:
        """Median seconds of a call, as one step."""
        outputs = [_empty(self.signature, name) for name in self.signature.outputs]
        times = []
        for _ in range(max(1, repeats)):
            started = time.perf_counter()
            self.execute(inputs, outputs)
            times.append(time.perf_counter() - started)
        return [StepProfile(self._graph.name, self.engine, statistics.median(times))]


class _Lowered:
    """A graph as structs, and all that they point to."""

    def __init__(self, graph: Graph, values: Sequence[Value], arrays: Mapping[Value, Array]) -> None:
        place = {value: number for number, value in enumerate(values)}
        self._kept: list[object] = [arrays]
        rows = (_Value * max(1, len(values)))()
        for row, value in zip(rows, values, strict=False):
            row.dtype, row.rank = DTYPES.index(value.dtype.name), len(value.shape)
            row.sizes = self._keep((ctypes.c_int64 * max(1, len(value.shape)))(*value.shape))
            row.data = arrays[value].ctypes.data if value in arrays else None
        live = [node for node in graph.live() if node.op.name not in _LEAVES]
        nodes = (_Node * max(1, len(live)))()
        for row, node in zip(nodes, live, strict=False):
            row.op, row.attributes = node.op.name.encode(), _attributes(node.attrs).encode()
            row.operand_count, row.operands = self._places([place[operand] for operand in node.operands])
            row.result_count, row.results = self._places([place[result] for result in node.results])
        self.graph = _Graph(ctypes.sizeof(_Graph), graph.name.encode())
        self.graph.value_count, self.graph.values = len(values), self._keep(rows)
        self.graph.node_count, self.graph.nodes = len(live), self._keep(nodes)
        self.graph.input_count, self.graph.inputs = self._places([place[v] for v in graph.inputs.values()])
        self.graph.output_count, self.graph.outputs = self._places([place[v] for v in graph.outputs.values()])

    def _places(self, numbers: Sequence[int]) -> tuple[int, Any]:
        return len(numbers), self._keep((ctypes.c_int32 * max(1, len(numbers)))(*numbers))

    def _keep(self, block: Any) -> Any:
        self._kept.append(block)
        return ctypes.cast(block, ctypes.POINTER(block._type_))


def _lowered(graph: Graph) -> _Lowered | Decline:
    """A Decline where a size is no number, or a dtype none of the ABI."""
    if (lacking := without_weights(graph)) is not None:
        return lacking
    values = list(dict.fromkeys(graph.inputs.values()))
    values += [
        result for node in graph.live() for result in node.results if result not in graph.inputs.values()
    ]
    for one in values:
        if not all(isinstance(dim, int) for dim in one.shape):
            return Decline(f"native plugins take sizes that are numbers, and {one} has symbols: bind them")
        if one.dtype.name not in DTYPES:
            return Decline(f"the engine ABI {ABI_MAJOR}.{ABI_MINOR} has no dtype {one.dtype.name}")
    arrays = {value: graph.weight(name) for name, value in graph.parameters.items()}
    arrays |= {value: value.node.attrs["value"].array for value in values if value.op_name == "constant"}
    return _Lowered(graph, values, {one: _dense(array, one) for one, array in arrays.items()})


def _dense(array: Array, value: Value) -> Array:
    return np.require(np.asarray(array).reshape(tuple(value.shape)), requirements=["C", "A"])


def _attributes(attrs: Mapping[str, object]) -> str:
    return json_text({name: _plain(one) for name, one in attrs.items()})


def _plain(one: object) -> object:
    if isinstance(one, (list, tuple)):
        return [_plain(item) for item in one]
    return one if one is None or isinstance(one, (bool, int, float, str)) else str(one)


def _addresses(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(tensors)))(*[tensor.data_ptr() for tensor in tensors])


def _empty(signature: Signature, name: str) -> torch.Tensor:
    of = signature.outputs[name]
    return torch.empty([int(str(dim)) for dim in of.shape], dtype=getattr(torch, of.dtype.name))


def _text(reason: ctypes.Array[ctypes.c_char]) -> str:
    return " ".join(reason.value.decode(errors="replace").split())
