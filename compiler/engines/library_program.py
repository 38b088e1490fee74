"""A graph as a list of calls of PyTorch's kernels.

Each node is a step: a kernel, the slots that it reads, the slot that it fills, and the slots that nobody reads after
it, which are dropped. Kernels whose making needs sizes of symbols are made when these are known, and kept for the
newest few sets of sizes. Views of weights and constants are taken once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels_hub.compiler.engines import library_ops
from kernels_hub.compiler.engines.library_bytes import find_byte_products
from kernels_hub.compiler.engines.library_conv import find_convs
from kernels_hub.compiler.engines.library_linear import Linear, find_linears, linear_kernel, needed
from kernels_hub.compiler.engines.library_ops.composites import composite_kernel
from kernels_hub.compiler.engines.library_ops.contract import make_biased_conv
from kernels_hub.compiler.engines.library_ops.site import LibraryKernel, Run, Site, SizesNeeded, regions
from kernels_hub.compiler.engines.library_steps import is_small, one_thread
from kernels_hub.compiler.engines.tensors import to_tensor
from kernels_hub.compiler.errors import DimError, EngineError
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.dims import Dim, Expr
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Trait
from kernels_hub.compiler.runtime.binding import ShapeCache
from kernels_hub.compiler.runtime.newest import Newest
from kernels_hub.compiler.runtime.parts import Shape

_MOST_SIZES = 16
_LEAVES = frozenset({"input", "parameter", "constant"})
_REGIONS = frozenset({"call", "if", "loop", "scan"})

Sizes = dict[str, int]


class LibraryStep:
    """A node's place in the list."""

    __slots__ = ("drops", "node", "nodes", "operands", "results", "run", "single")

    def __init__(self, node: Node, operands: tuple[int, ...], results: tuple[int, ...]) -> None:
        self.node, self.operands, self.results = node, operands, results
        self.nodes: tuple[Node, ...] = (node,)
        """Nodes whose work it does; more than the one for linear layers."""
        self.drops: tuple[int, ...] = ()
        self.run: Run | None = None
        """None where it is made for each set of sizes."""
        self.single = node.op.signature is None


class LibraryProgram:
    """See the module. Safe to be run by several threads."""

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        weight: Callable[[str], Tensor] | None = None,
        *,
        pack: bool = True,
    ) -> None:
        """weight: gives a parameter. pack: whether weights are laid out anew where that is faster."""
        self.graph, self.device, self._packs = graph, device, pack
        self._weight = weight
        self._slots: dict[Value, int] = {}
        self._filled: list[Tensor | None] = []
        self._inputs: list[int] = []
        self.steps: list[LibraryStep] = []
        self._sizes: ShapeCache[Sizes] = ShapeCache(self._bound, _MOST_SIZES)
        self._made: Newest[tuple[Any, ...], list[Run | None]] = Newest(_MOST_SIZES)
        self._lock = threading.Lock()
        self._linears, self._convs = find_linears(graph), find_convs(graph)
        self._byte_products = find_byte_products(graph, device)
        for node in needed(graph, {**self._linears, **self._convs, **self._byte_products}):
            self._add(node)
        self._outputs = tuple(self._slots[value] for value in graph.outputs.values())
        self._set_drops()
        self._symbols = frozenset(graph.symbols)
        self._late = {step for step in self.steps if step.run is None}
        self.constants = frozenset(
            tensor.untyped_storage().data_ptr() for tensor in self._filled if tensor is not None
        )

    def __call__(self, inputs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """The outputs; views of inputs, of weights and of each other among them. sizes: grows by what data tell."""
        slots: list[Any] = list(self._filled)
        for slot, tensor in zip(self._inputs, inputs, strict=True):
            slots[slot] = tensor
        runs = self._runs(sizes) if self._late else None
        for index, step in enumerate(self.steps):
            run = step.run
            if run is None:
                assert runs is not None
                run = runs[index] or self._make(step.node, sizes)
            try:
                result = run(*[slots[operand] for operand in step.operands])
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                raise self._failure(step, [slots[operand] for operand in step.operands], error) from error
            if step.single:
                slots[step.results[0]] = result
            else:
                for slot, value in zip(step.results, result, strict=True):
                    slots[slot] = value
            if step.node.op.defines is not None:
                self._define(step.node, slots[step.results[0]], sizes)
            for slot in step.drops:
                slots[slot] = None
        return [slots[slot] for slot in self._outputs]

    def on_its_own(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """As a call, where shapes of inputs tell every size."""
        return self(inputs, self.bind(inputs))

    def timed(self, inputs: Sequence[Tensor], sizes: Sizes) -> list[float]:
        """Seconds of each step, waiting for the device after each."""
        slots: list[Any] = list(self._filled)
        for slot, tensor in zip(self._inputs, inputs, strict=True):
            slots[slot] = tensor
        seconds = []
        for step in self.steps:
            run = step.run or self._make(step.node, sizes)
            started = time.perf_counter()
            result = run(*[slots[operand] for operand in step.operands])
            if self.device.type != "cpu":
                torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - started)
            results = (result,) if step.single else result
            for slot, value in zip(step.results, results, strict=True):
                slots[slot] = value
            if step.node.op.defines is not None:
                self._define(step.node, results[0], sizes)
        return seconds

    # -- building

    def _add(self, node: Node) -> None:
        if node.op.name in _LEAVES:
            self._add_leaf(node)
            return
        if node in self._linears:
            self._add_linear(self._linears[node])
            return
        biased = self._convs.get(node)
        joined = biased or self._byte_products.get(node)
        operands = node.operands if joined is None else joined.operands
        step = LibraryStep(node, tuple(self._slots[operand] for operand in operands), ())
        if biased is not None:
            step.nodes = biased.nodes
        try:
            step.run = self._make(node, None)
        except (
            SizesNeeded,
            EngineError,
        ):  # what cannot be computed is an error of the call, as in the oracle
            step.run = None
        if step.run is not None and self._is_settled(node, step):
            tensor = step.run(*(self._filled[operand] for operand in step.operands))
            self._slots[node.results[0]] = len(self._filled)
            self._filled.append(tensor)
            return
        self._append(step)

    def _append(self, step: LibraryStep) -> None:
        results = step.node.results
        step.results = tuple(range(len(self._filled), len(self._filled) + len(results)))
        for value, slot in zip(results, step.results, strict=True):
            self._slots[value] = slot
            self._filled.append(None)
        self.steps.append(step)

    def _add_linear(self, linear: Linear) -> None:
        step = LibraryStep(linear.root, tuple(self._slots[operand] for operand in linear.operands), ())
        step.nodes, step.single = linear.nodes, True
        weight = self._filled[self._slots[linear.weight]]
        step.run = linear_kernel(linear, weight, self.device, pack=self._packs)
        self._append(step)

    def _add_leaf(self, node: Node) -> None:
        (value,) = node.results
        self._slots[value] = len(self._filled)
        tensor: Tensor | None = None
        if node.op.name == "input":
            self._inputs.append(self._slots[value])
        elif node.op.name == "parameter":
            assert self._weight is not None
            tensor = self._weight(node.attrs["name"])
        else:
            tensor = to_tensor(node.attrs["value"].array).to(self.device)
        self._filled.append(tensor)

    def _is_settled(self, node: Node, step: LibraryStep) -> bool:
        """Whether it is a view of what never changes."""
        if any(self._filled[operand] is None for operand in step.operands):
            return False
        return Trait.VIEW in node.op.traits or node.op.name in {"iota", "size"}

    def _make(self, node: Node, sizes: Sizes | None, known: dict[Expr, Dim] | None = None) -> Run:
        """The kernel of a node. Raises SizesNeeded where sizes are missing; EngineError where it cannot be.

        known: dims -> what they are with these sizes; grows.
        """
        site = Site(node, self.device, sizes, lambda graph: self._part(graph, sizes).on_its_own, known)
        if node.op.name in _REGIONS:
            return self._make_region(node, site, sizes)
        if (biased := self._convs.get(node)) is not None:
            return make_biased_conv(Site(biased.conv, self.device, sizes, known=known))
        if (product := self._byte_products.get(node)) is not None:
            return product.make(site)
        kernel = kernel_of(node)
        assert kernel is not None, node
        try:
            return kernel.make(site)
        except EngineError as error:
            origin = f" (from {node.origin})" if node.origin else ""
            raise EngineError(
                f"engine library: graph {self.graph.name}: {node!r}{origin}: {error}"
            ) from error

    def _make_region(self, node: Node, site: Site, sizes: Sizes | None) -> Run:
        if node.op.name == "call":
            kernel = composite_kernel(node, self.device.type)
            if kernel is not None:
                run = kernel.make(site)
                return lambda *operands: (run(*operands),)
        if sizes is None and node.symbols():
            raise SizesNeeded
        parts = [self._part(graph, sizes) for graph in regions(node)]
        return _REGION_RUNS[node.op.name](site, parts, dict(sizes or {}))

    def _part(self, region: Graph, sizes: Sizes | None) -> LibraryProgram:
        """A region as a program. Sizes that the graph around it tells are numbers in it: max(m, n) tells neither.

        Raises SizesNeeded where there are such and they are not known.
        """
        untold = _untold(region)
        if sizes is None and untold:
            raise SizesNeeded
        known = {name: size for name, size in (sizes or {}).items() if name in untold}
        return LibraryProgram(region.bind(known) if known else region, self.device, pack=self._packs)

    def _set_drops(self) -> None:
        kept = {*self._outputs, *(slot for slot, one in enumerate(self._filled) if one is not None)}
        last: dict[int, LibraryStep] = {}
        for step in self.steps:
            for slot in (*step.operands, *step.results):
                last[slot] = step
        drops: dict[LibraryStep, list[int]] = {}
        for slot, step in last.items():
            if slot not in kept:
                drops.setdefault(step, []).append(slot)
        for step, slots in drops.items():
            step.drops = tuple(slots)

    # -- sizes

    def bind(self, inputs: Sequence[Tensor]) -> Sizes:
        """The sizes of symbols that the shapes of inputs tell. Raises ShapeError where they contradict."""
        return dict(self._sizes.of(inputs)) if self._symbols else {}

    def _bound(self, shapes: tuple[Shape, ...]) -> Sizes:
        declared = {name: value.type for name, value in self.graph.inputs.items()}
        return bind_shapes(declared, shapes, f"graph {self.graph.name}: input")

    def _runs(self, sizes: Sizes) -> list[Run | None]:
        """Kernels of the steps that need sizes; None where data have to tell one first."""
        key = tuple(sizes.get(name) for name in sorted(self._symbols))
        with self._lock:
            runs = self._made.get(key)
            if runs is not None:
                self._made.move_to_end(key)
                return runs
        runs, known = [], dict[Expr, Dim]()
        for step in self.steps:
            try:
                runs.append(None if step.run is not None else self._make(step.node, sizes, known))
            except SizesNeeded:
                runs.append(None)
        with self._lock:
            self._made[key] = runs
        return runs

    def _define(self, node: Node, result: Tensor, sizes: Sizes) -> None:
        one = node.attrs[node.op.defines or ""].only_symbol
        size = int(result) if result.dim() == 0 else int(result.shape[-1])
        substitute(self.graph.symbols[one.name], {one.name: size})
        if sizes.setdefault(one.name, size) != size:
            raise DimError(f"{one.name} is {sizes[one.name]}, but the data make it {size}")

    def _failure(self, step: LibraryStep, operands: Sequence[Any], error: Exception) -> Exception:
        if isinstance(error, EngineError) and error.__cause__ is not None:
            return error
        origin = f" (from {step.node.origin})" if step.node.origin else ""
        shapes = ", ".join(
            f"{str(operand.dtype).removeprefix('torch.')}{list(operand.shape)}" for operand in operands
        )
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return EngineError(
            f"engine library: graph {self.graph.name}: {step.node!r}{origin} of {shapes or 'no operands'}: {lines[0]}"
        )


def _untold(region: Graph) -> set[str]:
    """Symbols that no dim of its own inputs is, which the graph around it tells."""
    told = {
        dim.only_symbol.name
        for value in region.inputs.values()
        for dim in value.shape
        if not isinstance(dim, int) and dim.only_symbol is not None
    }
    return set(region.symbols) - told


def kernel_of(node: Node) -> LibraryKernel | None:
    """The kernel for a node's op, where there is one that is no region."""
    return library_ops.kernel_of(node.op)


# -- ops that hold graphs


def _run_call(_: Site, parts: Sequence[LibraryProgram], sizes: Sizes) -> Run:
    (callee,) = parts
    return lambda *operands: tuple(callee(operands, {**sizes, **callee.bind(operands)}))


def _run_if(_: Site, parts: Sequence[LibraryProgram], sizes: Sizes) -> Run:
    then, otherwise = parts

    def run(condition: Tensor, *captures: Tensor) -> tuple[Tensor, ...]:
        branch = then if bool(condition) else otherwise
        return tuple(branch(captures, {**sizes, **branch.bind(captures)}))

    return run


def _run_loop(site: Site, parts: Sequence[LibraryProgram], sizes: Sizes) -> Run:
    (body,) = parts
    carried, count = site["carried"], site["count"]
    results = [(site.node.results[index].dtype, index) for index in range(len(site.node.results))]
    alone = site.device.type == "cpu" and is_small(body.graph, sizes)

    def run(trips: Tensor, condition: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        state, captures = list(operands[:carried]), operands[carried:]
        most, go_on, done = int(trips), bool(condition), 0
        stacks: list[list[Tensor]] = [[] for _ in results[carried:]]
        with one_thread(applies=alone):
            while go_on and done < most:
                arguments = [torch.tensor(done, device=site.device), *state, *captures]
                flag, *outputs = body(arguments, {**sizes, **body.bind(arguments)})
                go_on, done = bool(flag), done + 1
                state = outputs[:carried]
                for stack, element in zip(stacks, outputs[carried:], strict=True):
                    stack.append(element)
        if stacks and done != count:
            raise EngineError(f"the loop ran {done} times, but its stacked results are {count} long")
        return (*state, *_stacked(site, stacks, carried))

    return run


def _run_scan(site: Site, parts: Sequence[LibraryProgram], sizes: Sizes) -> Run:
    (body,) = parts
    states, sequences = site["states"], site["sequences"]
    alone = site.device.type == "cpu" and is_small(body.graph, sizes)

    def run(*operands: Tensor) -> tuple[Tensor, ...]:
        state = list(operands[:states])
        runs, captures = operands[states : states + sequences], operands[states + sequences :]
        stacks: list[list[Tensor]] = [[] for _ in site.node.results[states:]]
        with one_thread(applies=alone):
            for index in range(runs[0].shape[0]):
                arguments = [*state, *(run[index] for run in runs), *captures]
                outputs = body(arguments, {**sizes, **body.bind(arguments)})
                state = list(outputs[:states])
                for stack, element in zip(stacks, outputs[states:], strict=True):
                    stack.append(element)
        return (*state, *_stacked(site, stacks, states))

    return run


def _stacked(site: Site, stacks: Sequence[Sequence[Tensor]], first: int) -> list[Tensor]:
    from kernels_hub.compiler.engines.tensors import codes, torch_dtype

    stacked = []
    for index, stack in enumerate(stacks, first):
        value = site.node.results[index]
        dtype = torch_dtype(value.dtype)
        if stack:
            stacked.append(
                torch.stack([codes(element) for element in stack]).view(dtype)
                if not value.dtype.is_complex
                else torch.stack(list(stack))
            )
        else:
            shape = tuple(substitute(dim, site.sizes or {}) for dim in value.shape)
            stacked.append(torch.empty(shape, dtype=dtype, device=site.device))
    return stacked


_REGION_RUNS: Mapping[str, Callable[[Site, Sequence[LibraryProgram], Sizes], Run]] = {
    "call": _run_call,
    "if": _run_if,
    "loop": _run_loop,
    "scan": _run_scan,
}
