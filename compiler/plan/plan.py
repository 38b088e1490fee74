"""Plans: what runs. Segments in order, each a `CompiledPlan` of one engine, and where values pass between them.

    plan = Plan.load("model.khplan")
    y = plan(x)                                     tensors or arrays in, of the same kind out
    results = plan.execute({"x": x})                by name
    plan.execute((x,), outputs={"y": out})          into memory of the caller

A graph on one engine is a plan of one segment, and a call of it is a look-up of the shapes, the allocation of the
outputs, and the engine's `execute`. Between segments values lie in one arena, at offsets by lifetime; each
thread has an arena of its own, kept for its next call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels_hub.compiler.engines.engine import Device, StepProfile
from kernels_hub.compiler.engines.tensors import torch_dtype
from kernels_hub.compiler.errors import PlanError
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.plan.arguments import array_of, is_array, tensor_of
from kernels_hub.compiler.plan.call import BoundProgram
from kernels_hub.compiler.plan.placement import lay_out
from kernels_hub.compiler.plan.program import Program, bare, torch_device
from kernels_hub.compiler.runtime.arena import Arenas
from kernels_hub.compiler.runtime.binding import ShapeCache
from kernels_hub.compiler.runtime.parts import Shape

if TYPE_CHECKING:
    from kernels_hub.compiler.plan.cuda_graph import CapturedPlan
    from kernels_hub.compiler.plan.profiling import Profile
    from kernels_hub.compiler.plan.rates import Rates

_MOST_SHAPES = 32
"""Sets of input shapes whose checks are kept."""

_MOST_ARENAS = 4
"""Sets of input shapes, the newest ones, that decide how large an arena stays."""

_DIRECT = frozenset({torch.Tensor, torch.nn.Parameter})


class Plan:
    """See the module. `segments` says which engine runs what; `signature`, `device` what it is made for."""

    def __init__(self, program: Program, device: Device) -> None:
        self.program, self.device = program, device
        self.name, self.signature, self.segments = program.name, program.signature, program.segments
        self.torch_device = torch_device(device)
        self._inputs = tuple(program.signature.inputs.items())
        self._outputs = tuple(program.signature.outputs.items())
        self._single = len(self._outputs) == 1
        of_all = (*program.signature.inputs.values(), *program.signature.outputs.values())
        self._plain = device.type == "cpu" and all(of.dtype.module == "numpy" for of in of_all)
        """Whether torch and NumPy take each other's memory as it is, for every dtype here."""
        self._arenas = Arenas()
        self._known: dict[Any, BoundProgram] = {}
        """What inputs are (types, shapes …) -> what is known of these. Only of tensors that need no conversion."""
        self._calls = ShapeCache(self._bound, _MOST_SHAPES, self._forget)
        self._lock = threading.Lock()
        plans = [bare(segment.plan) for segment in program.segments]
        if all(hasattr(plan, "run_alone") for plan in plans):
            for (
                each_plan
            ) in plans:  # no threads of another engine, PyTorch's above all, would spin beside theirs
                each_plan.run_alone()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        engines = ", ".join(dict.fromkeys(self.engines)) or "nothing"
        count = len(self.segments)
        return f"<Plan {self.name}: {count} segment{'s' if count != 1 else ''} on {engines}, {self.device}>"

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine of each segment."""
        return tuple(segment.engine for segment in self.segments)

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Sets of shapes of the inputs that it has run, or was bound to."""
        return self._calls.shapes

    def __call__(self, *inputs: Any) -> Any:
        """The output, or a tuple of the outputs. inputs: in order. Raises as `execute` does."""
        if inputs and type(inputs[0]) is np.ndarray:  # has no `layout`: finding out takes as long as a kernel
            results = self._run_arrays(inputs) or self.run(inputs)
            return results[0] if self._single else tuple(results)
        try:
            call = self._known[
                tuple(
                    [
                        (type(x), x.shape, x.dtype, x.device, x.layout, x.requires_grad, x.is_neg())
                        for x in inputs
                    ]
                )
            ]  # _key(inputs), without the call
        except (KeyError, AttributeError, TypeError):
            results = self._run_arrays(inputs) or self.run(inputs)
        else:
            results = call.run(inputs)
        return results[0] if self._single else tuple(results)

    def execute(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        outputs: Mapping[str, Any] | Sequence[Any] | None = None,
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> dict[str, Any]:
        """The outputs by name.

        inputs: tensors, NumPy arrays, or what has DLPack, by name or in order. outputs: where to write, of the exact
        types and without overlap. workspace: scratch memory, a uint8 tensor of at least `workspace_size` bytes.
        stream: a GPU stream's handle. All NumPy in: NumPy out, else tensors.

        Raises PlanError for what does not fit, ShapeError and DimError for shapes that contradict each other (all
        name graph and value), EngineError where an engine fails.
        """
        listed = self.in_order(inputs)
        targets = None if outputs is None else self._by_name(outputs, tuple(self.signature.outputs), "output")
        return dict(zip(self.signature.outputs, self.run(listed, targets, workspace, stream), strict=True))

    def in_order(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
        """Inputs by name, or in order, in order. Raises PlanError for names that there are not, or that lack."""
        return self._by_name(inputs, tuple(self.signature.inputs), "input")

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        workspace: torch.Tensor | None = None,
        stream: int | None = None,
    ) -> list[Any]:
        """As `execute`, in order."""
        plain = outputs is None and workspace is None and stream is None
        if plain and inputs and (arrays := self._run_arrays(inputs)) is not None:
            return arrays
        tensors, call = self._check(inputs)
        results = call.run(tensors) if plain else self._run_into(call, tensors, outputs, workspace, stream)
        if outputs is not None:
            return list(outputs)
        if inputs and all(map(is_array, inputs)):
            return [
                array_of(result, of.dtype) for result, (_, of) in zip(results, self._outputs, strict=True)
            ]
        return results

    def sizes(self, *shapes: Sequence[int]) -> dict[str, int]:
        """The size of each symbol for shapes of the inputs. Raises ShapeError and DimError."""
        return bind_shapes(self.signature.inputs, shapes, f"graph {self.name}: input")

    def workspace_size(self, sizes: Mapping[str, int] | None = None) -> int:
        """Bytes of scratch memory for these sizes of the symbols. Raises PlanError where one is missing."""
        sizes = sizes or {}
        needed = dim_symbols(dim for _, of in self._inputs for dim in of.shape)
        if missing := sorted(symbol.name for symbol in needed if symbol.name not in sizes):
            raise PlanError(
                f"graph {self.name}: the workspace depends on {', '.join(missing)}; give their sizes"
            )
        return lay_out(self.program, sizes).total

    def profile(self, inputs: Any, repeats: int = 10, *, rates: Rates | None = None) -> Profile:
        """Median seconds of each step and of a whole call. inputs: by name or in order; rates: see `profiling`."""
        from kernels_hub.compiler.plan.profiling import profile_plan

        return profile_plan(self, self.in_order(inputs), repeats, rates)

    def steps(self, inputs: Sequence[Any], repeats: int = 10) -> list[StepProfile]:
        """The steps of all segments, each profiled by its engine on what the segments before it give."""
        tensors, call = self._check(inputs)
        return call.profile(tensors, repeats)

    def capture(self, *inputs: Any) -> CapturedPlan:
        """A call of these shapes as one CUDA graph, to be replayed: see `captured`. inputs: tensors on the GPU.

        Raises PlanError for a plan on the CPU, EngineError where an engine's work cannot be captured.
        """
        from kernels_hub.compiler.plan.cuda_graph import capture

        return capture(self, inputs)

    def serialize(self) -> bytes:
        """The plan as bytes, with weights and without pickle. Raises EngineError where an engine cannot do that."""
        from kernels_hub.compiler.plan.file import write_program

        return write_program(self.program, self.device)

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | bytes,
        device: str | Device | torch.device | None = None,
        *,
        trust_native_code: bool | str = False,
    ) -> Plan:
        """The plan that `serialize` wrote: its bytes, or the path of a file. Raises PlanError: see `plan_file`.

        trust_native_code: whether built code in it may run where nothing can be built; True, or the file's SHA-256.
        """
        from kernels_hub.compiler.plan.file import read_program

        return cls(*read_program(source, device, trust_native_code))

    # -- checks

    def _by_name(self, given: Any, names: tuple[str, ...], what: str) -> Sequence[Any]:
        if isinstance(given, Mapping):
            missing = [name for name in names if name not in given]
            unknown = [name for name in given if name not in names]
            if missing or unknown:
                raise PlanError(
                    f"graph {self.name} has the {what}s {list(names)}; missing are {missing}, unknown {unknown}"
                )
            return [given[name] for name in names]
        if len(given) != len(names):
            raise PlanError(f"graph {self.name} has the {what}s {list(names)}, got {len(given)} values")
        return list(given)

    def _run_arrays(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Results for NumPy arrays of known shapes, whose memory torch can take as it is; None for all else."""
        try:
            call = self._known[_array_key(inputs)]
        except (KeyError, AttributeError, TypeError):
            return None
        tensors = []
        for array in inputs:
            if type(array) is not np.ndarray or not array.flags.carray:
                return None
            tensors.append(torch.from_numpy(array))
        return call.run_arrays(tensors)

    def _check(self, inputs: Sequence[Any]) -> tuple[list[torch.Tensor], BoundProgram]:
        """The tensors that are given, and what is known of their shapes."""
        self._by_name(inputs, tuple(self.signature.inputs), "input")
        tensors = [
            tensor_of(one, of.dtype, self.torch_device, f"graph {self.name}: input {name!r}")
            for (name, of), one in zip(self._inputs, inputs, strict=True)
        ]
        call = self._calls.of(tensors)
        self._arenas.shrink(max(kept.arena_bytes for kept in self._calls.results[-_MOST_ARENAS:]))
        with self._lock:
            if len(self._known) < 4 * _MOST_SHAPES:
                if all(map(_needs_nothing, inputs)):
                    self._known[_key(inputs)] = call
                elif self._plain and all(type(one) is np.ndarray and one.dtype.isnative for one in inputs):
                    self._known[_array_key(inputs)] = call
        return tensors, call

    def _bound(self, shapes: tuple[Shape, ...]) -> BoundProgram:
        call = BoundProgram(self.program, self.sizes(*shapes), self.device, self._arenas)
        if any(of.dtype.is_complex for _, of in self._inputs):
            call.resolve_inputs()
        return call

    def _forget(self, dropped: BoundProgram) -> None:
        with self._lock:
            self._known = {key: call for key, call in self._known.items() if call is not dropped}

    def _run_into(
        self,
        call: BoundProgram,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Any] | None,
        workspace: torch.Tensor | None,
        stream: int | None,
    ) -> list[torch.Tensor]:
        """With outputs or a workspace of the caller, which are checked. What is not contiguous is copied to."""
        targets = None if outputs is None else self._targets(outputs, call)
        self._check_overlap(inputs, targets or [], workspace)
        if workspace is not None:
            self._check_workspace(workspace, call)
        written = targets and [
            target if target.is_contiguous() else target.contiguous() for target in targets
        ]
        results = call.run_into(inputs, written, workspace, stream)
        for target, result in zip(targets or (), results, strict=False):
            if target is not result:
                target.copy_(result)
        return results

    def _targets(self, outputs: Sequence[Any], call: BoundProgram) -> list[torch.Tensor]:
        tensors = []
        for (name, of), target, (shape, _) in zip(self._outputs, outputs, call.outputs, strict=True):
            what = f"graph {self.name}: output {name!r}"
            tensor = tensor_of(target, of.dtype, self.torch_device, what)
            if isinstance(target, torch.Tensor) and (target.is_conj() or target.is_neg()):
                raise PlanError(f"{what} is conjugated or negated when it is read; give its memory as it is")
            if isinstance(target, np.ndarray):
                if not target.flags.writeable:
                    raise PlanError(f"{what} is a read-only array; give one that can be written to")
                if target.size and tensor.data_ptr() != target.ctypes.data:
                    expected = f"a tensor on {self.torch_device} of {torch_dtype(of.dtype)}"
                    raise PlanError(f"{what} is an array that torch cannot write to; give {expected}")
            if shape is not None and tuple(tensor.shape) != shape:
                raise PlanError(f"{what} has shape {list(tensor.shape)}, expected {list(shape)}")
            tensors.append(tensor)
        return tensors

    def _check_workspace(self, workspace: torch.Tensor, call: BoundProgram) -> None:
        what = f"graph {self.name} on {', '.join(dict.fromkeys(self.engines))}: the workspace"
        if not isinstance(workspace, torch.Tensor) or workspace.dtype is not torch.uint8:
            raise PlanError(
                f"{what} must be a tensor of uint8, got {getattr(workspace, 'dtype', type(workspace).__name__)}"
            )
        if workspace.device != self.torch_device:
            raise PlanError(f"{what} is on {workspace.device}, the plan runs on {self.torch_device}")
        if not workspace.is_contiguous() or workspace.data_ptr() % 64:
            raise PlanError(f"{what} must be contiguous and begin at a multiple of 64 bytes")
        if call.known and workspace.numel() < (needed := call.layout.total):
            raise PlanError(
                f"{what} has {workspace.numel()} bytes, and {needed} are needed: see workspace_size"
            )

    def _check_overlap(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], workspace: torch.Tensor | None
    ) -> None:
        """Raise PlanError where what is written lies in memory of something else, or one element upon another."""
        named = [
            (f"output {name!r}", output) for (name, _), output in zip(self._outputs, outputs, strict=False)
        ]
        if workspace is not None:
            named.append(("the workspace", workspace))
        others = [(f"input {name!r}", tensor) for (name, _), tensor in zip(self._inputs, inputs, strict=True)]
        for index, (what, one) in enumerate(named):
            if _folded(one):
                raise PlanError(
                    f"graph {self.name}: {what} has elements that share memory (strides {one.stride()})"
                )
            for other_what, other in (*named[:index], *others):
                a, b = _span(one), _span(other)
                if a[0] < b[1] and b[0] < a[1]:
                    raise PlanError(
                        f"graph {self.name}: {what} and {other_what} overlap in memory; give each its own"
                    )


def _key(inputs: Sequence[Any]) -> Any:
    """All of tensors that decides how they are taken, but for where they are and their strides."""
    return tuple(
        [(type(x), x.shape, x.dtype, x.device, x.layout, x.requires_grad, x.is_neg()) for x in inputs]
    )


def _array_key(inputs: Sequence[Any]) -> Any:
    """The same of NumPy's arrays."""
    return tuple([(x.shape, x.dtype) for x in inputs])


def _needs_nothing(given: Any) -> bool:
    """Whether engines can take a tensor, and all of the same key, as it is."""
    return type(given) in _DIRECT and not given.requires_grad and not given.is_neg()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Its first byte and the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.element_size()


def _folded(tensor: torch.Tensor) -> bool:
    """Whether two elements may be at the same place."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        if size > 1:
            if stride <= reach:
                return tensor.numel() > 0
            reach += (size - 1) * stride
    return False
