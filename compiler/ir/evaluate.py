"""The oracle: evaluates a graph with NumPy, one op after the other. The judge of every other executor.

Each op is computed by the reference in its row, as simply as can be: nothing is fused, planned or
parallel. Floats narrower than float32 are computed in float32 and rounded after every op; sums of products
and reductions are kept in float64, so that the oracle's own rounding does not hide that of what it judges.
Arrays are dropped after their last use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_hub.compiler.errors import CompilerError, DimError, EvaluateError, NonFiniteError
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.binding import Unified, unify, unify_all
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph, Node, Value, bound
from kernels_hub.compiler.ir.op import ReferenceCall, TensorType
from kernels_hub.compiler.ir.types import Array

if TYPE_CHECKING:
    from kernels_hub.compiler.ir.report import Report

Observer = Callable[[Node, ReferenceCall | None, Sequence[Array]], object]
"""(node, its step with numbers for sizes, None of inputs and parameters, its results): called after each op."""


class Evaluation(Mapping[str, Array]):
    """Outputs by name, in order; `report` says what each op did, where that was asked for."""

    def __init__(self, outputs: dict[str, Array], report: Report | None) -> None:
        self._outputs = outputs
        self.report = report

    def __getitem__(self, name: str) -> Array:
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Any] | Sequence[Any] = (),
    *,
    bindings: Mapping[str, int] | None = None,
    weights: Mapping[str, Array] | None = None,
    debug: bool = False,
    watch: bool = False,
    observe: Observer | None = None,
) -> Evaluation:
    """The outputs of a graph.

    inputs: by name or in order; arrays of the declared dtypes. bindings: sizes of symbols that no input's
    shape tells. weights: arrays for parameters, before those of the graph. debug: time, shape and statistics of
    every op, in `report`. watch: raises NonFiniteError at the first op that makes a NaN or an infinity of
    finite operands. observe: is called after each op, in order; not for those inside of regions.

    Raises EvaluateError for inputs that do not fit, or data that an op refuses (naming the value); ShapeError
    and DimError for sizes that contradict each other.

    >>> graph = Graph("double")
    >>> x = graph.input("x", ("n", 4))
    >>> y = graph.output("y", x * 2.0)
    >>> evaluate(graph, {"x": np.ones((1, 4), np.float32)})["y"]
    array([[2., 2., 2., 2.]], dtype=float32)
    """
    report = None
    if debug:
        from kernels_hub.compiler.ir.report import Report

        report = Report(graph.name)
    run = _Run(graph, dict(bindings or {}), dict(weights or {}), report, watch=watch, observe=observe)
    with np.errstate(all="ignore"):
        return Evaluation(run(_by_name(graph, inputs)), run.report)


def _by_name(graph: Graph, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(graph.inputs):
            raise EvaluateError(f"graph {graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
        inputs = dict(zip(graph.inputs, inputs, strict=True))
    if missing := [name for name in graph.inputs if name not in inputs]:
        raise EvaluateError(f"graph {graph.name} needs the inputs {', '.join(map(repr, missing))}")
    if unknown := [name for name in inputs if name not in graph.inputs]:
        known = ", ".join(map(repr, graph.inputs)) or "none"
        raise EvaluateError(
            f"graph {graph.name} has no inputs {', '.join(map(repr, unknown))}; it has {known}"
        )
    return {name: np.asarray(inputs[name]) for name in graph.inputs}


class _Run:
    """One evaluation of one graph: sizes known so far, and arrays not yet dropped."""

    def __init__(
        self,
        graph: Graph,
        sizes: dict[str, int],
        weights: dict[str, Array],
        report: Report | None,
        *,
        watch: bool,
        observe: Observer | None = None,
    ) -> None:
        self.graph, self.sizes, self.weights, self.report, self.watch = graph, sizes, weights, report, watch
        self.observe = observe
        self.latest: ReferenceCall | None = None

    def __call__(self, inputs: dict[str, Array]) -> dict[str, Array]:
        graph = self.graph
        self._bind_inputs(inputs)
        for name, size in self.sizes.items():
            if name in graph.symbols:
                substitute(graph.symbols[name], {name: size})
        nodes = graph.live()
        last = _last_uses(nodes)
        outputs = set(graph.outputs.values())
        arrays: dict[Value, Array] = {}
        for node in nodes:
            arrays.update(zip(node.results, self._run(node, arrays, inputs), strict=True))
            for value in (*node.operands, *node.results):
                if last.get(value, node) is node and value not in outputs:
                    arrays.pop(value, None)
        return {name: arrays[value] for name, value in graph.outputs.items()}

    def _bind_inputs(self, inputs: Mapping[str, Array]) -> None:
        for name, value in self.graph.inputs.items():
            array = inputs[name]
            if types.dtype(array.dtype) is not value.dtype:
                raise EvaluateError(f"input {name!r} is {value.type}, got {array.dtype}{list(array.shape)}")
        dims: dict[str, Any] = dict(self.sizes)
        declared = self.graph.inputs.items()
        unify_all([Unified(one.shape, inputs[name].shape, f"input {name!r}") for name, one in declared], dims)
        self.sizes.update(dims)

    def _run(self, node: Node, arrays: dict[Value, Array], inputs: dict[str, Array]) -> Sequence[Array]:
        started = time.perf_counter()
        operands = [arrays[operand] for operand in node.operands]
        try:
            results = self._compute(node, operands, inputs)
        except (CompilerError, ArithmeticError, ValueError, IndexError, MemoryError) as error:
            origin = f" (from {node.origin})" if node.origin else ""
            shapes = ", ".join(f"{operand.dtype}{list(operand.shape)}" for operand in operands)
            message = f"{node!r}{origin} of {shapes or 'no operands'}: {error}"
            if isinstance(error, MemoryError):  # of NumPy, whose own class takes no message
                raise MemoryError(message) from error  # noqa: TRY004 (no check of a type)
            raise (NonFiniteError if isinstance(error, NonFiniteError) else EvaluateError)(message) from error
        if self.observe is not None:
            self.observe(node, self.latest, results)
        for value, array in zip(node.results, results, strict=True):
            if self.watch or self.report is not None:
                self._note(node, value, array, operands, time.perf_counter() - started)
        return results

    def _compute(self, node: Node, operands: list[Array], inputs: dict[str, Array]) -> Sequence[Array]:
        if node.op.name in {"input", "parameter"}:
            self.latest = None
            return (inputs[node.attrs["name"]] if node.op.name == "input" else self._weight(node),)
        step = self._step(node, operands)
        answer = node.op.numpy(step)
        results = answer if node.op.signature is not None else (answer,)
        if node.op.defines is not None:
            self._define(node, results)
            step = self._step(node, operands)
        for value, array, of in zip(node.results, results, step.results, strict=True):
            if array.shape != of.shape or array.dtype != of.dtype.numpy:
                got = f"{array.dtype}{list(array.shape)}"
                raise EvaluateError(f"%{value.id} came out as {got}, its type is {value.type}: {of}")
        self.latest = step
        return [np.asarray(array) for array in results]

    def _step(self, node: Node, operands: list[Array]) -> ReferenceCall:
        attrs, of = node.attrs, tuple(value.type for value in node.results)
        if self.graph.symbols and (symbols := node.symbols()):
            defined = (
                set()
                if node.op.defines is None
                else {symbol.name for symbol in node.attrs[node.op.defines].symbols}
            )
            unknown = sorted(
                symbol.name
                for symbol in symbols
                if symbol.name not in self.sizes and symbol.name not in defined
            )
            if unknown:
                raise DimError(f"the sizes of {', '.join(unknown)} are not known: give bindings")
            closed = {attr.name for attr in node.op.attrs if attr.kind.name == "region"}
            attrs = {
                name: attribute if name in closed else bound(attribute, self.sizes)
                for name, attribute in attrs.items()
            }
            of = tuple(TensorType(operand.dtype, bound(operand.shape, self.sizes)) for operand in of)
        return ReferenceCall(operands, attrs, of, self._region)

    def _region(self, region: Graph, operands: Sequence[Array]) -> Sequence[Array]:
        inner = _Run(region, dict(self.sizes), {}, None, watch=self.watch)
        return list(inner(dict(zip(region.inputs, operands, strict=True))).values())

    def _define(self, node: Node, results: Sequence[Array]) -> None:
        (symbol,) = dim_symbols((node.attrs[node.op.defines or ""],))
        shape = node.results[0].shape
        size = int(results[0]) if not shape else results[0].shape[-1]
        substitute(self.graph.symbols[symbol.name], {symbol.name: size})
        if self.sizes.setdefault(symbol.name, size) != size:
            raise DimError(f"{symbol.name} is {self.sizes[symbol.name]}, but the data make it {size}")

    def _weight(self, node: Node) -> Array:
        name, value = node.attrs["name"], node.results[0]
        array = np.asarray(self.weights[name]) if name in self.weights else self.graph.weight(name)
        if types.dtype(array.dtype) is not value.dtype:
            raise EvaluateError(f"parameter {name!r} is {value.type}, got {array.dtype}{list(array.shape)}")
        dims: dict[str, Any] = dict(self.sizes)
        unify(value.shape, array.shape, dims, f"parameter {name!r}")
        self.sizes.update(dims)
        return array

    def _note(self, node: Node, value: Value, array: Array, operands: list[Array], seconds: float) -> None:
        from kernels_hub.compiler.ir.report import OpRow, statistics

        stats = statistics(array)
        bad = stats.nans + stats.infinities
        if self.report is not None:
            self.report.add(
                OpRow(
                    f"%{value.id}", node.op.name, node.origin, seconds, str(value.dtype), array.shape, stats
                )
            )
        if bad and node.op.name not in {"input", "parameter", "constant"} and _finite(operands):
            what = f"{stats.nans} NaN and {stats.infinities} infinite of {array.size} elements"
            if self.report is not None and self.report.first_non_finite is None:
                self.report.first_non_finite = f"{node!r}: {what}"
            if self.watch:
                origin = f" (from {node.origin})" if node.origin else ""
                raise NonFiniteError(f"{node!r}{origin} makes the first: {what}, from finite operands")


def _finite(operands: list[Array]) -> bool:
    from kernels_hub.compiler.ir.report import statistics

    return all(not (stats := statistics(operand)).nans and not stats.infinities for operand in operands)


def _last_uses(nodes: list[Node]) -> dict[Value, Node]:
    return {operand: node for node in nodes for operand in node.operands}
