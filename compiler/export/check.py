"""Checks an exported layer, as clients load it, against its module and the oracle, and times it.

Cases are the example's sizes, the smallest that the declared ranges allow, and odd ones. Inputs are seeded. At the
example's sizes, the oracle also judges each element on inputs made for the graph (`judging`).
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.errors import BuildError, EngineError, OriginalRaisesError
from kernels_hub.compiler.export.bytecode_files import bytecode_name
from kernels_hub.compiler.export.caches import LENGTH_AXIS
from kernels_hub.compiler.export.checked import Case, Checked, machine
from kernels_hub.compiler.export.load_emitted import load_emitted
from kernels_hub.compiler.export.native_binaries import Prebuilt, copy_alone
from kernels_hub.compiler.export.outputs_of_call import outputs_of_call
from kernels_hub.compiler.export.programs import dtype_name
from kernels_hub.compiler.export.source import Example, Source, evaluating, resized
from kernels_hub.compiler.importers.data_assertions import ASSERTIONS
from kernels_hub.compiler.importers.torch_program import array_of
from kernels_hub.compiler.importers.torch_trace import paths_of
from kernels_hub.compiler.ir.binding import bind_shapes
from kernels_hub.compiler.ir.cost import Costs
from kernels_hub.compiler.ir.dims import Dim, Symbol, dim_symbols
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.extrema import substitute
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array
from kernels_hub.compiler.judging import Judge
from kernels_hub.compiler.judging.timing import gain
from kernels_hub.compiler.runtime.bytecode import SUFFIX, no_interpreter
from kernels_hub.compiler.runtime.caches import Kind, kinds_of
from kernels_hub.compiler.runtime.parts import Cache, Held, Record
from kernels_hub.compiler.runtime.toolchain import machine_isas
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.numerics import largest_error, tolerance

_NARROW = {torch.float16, torch.bfloat16}
_DEEP = 4
"""Many layers of 16 bits add their rounding, to the original's results too: where a float32 copy of the module shows
that these err by more than the tolerance, ours may err as much, up to so many tolerances."""

_ORACLE_S = 4.0
"""Where the oracle took longer than this, it judges no further case."""
_JUDGED_S = 4.0
"""Seconds of the oracle for inputs made for the graph. Where one set would take more than twice as long, the original
and the oracle's plain results judge alone: of a BERT-base of 4 x 128 it takes 11, as long as all else."""
_SECONDS_OF_FLOP, _SECONDS_OF_WEIGHT = 5e-11, 4e-8
"""Of the oracle with error bounds, on a core: measured of a BERT-base."""
_TIMED_S = 0.2
_ODD = (3, 17, 5, 9)


def check_emitted(
    folder: Path, layer: str, sources: Sequence[Source], built: Sequence[Prebuilt], *, benchmark: bool
) -> Checked:
    """Load the layer as `get_local_kernel` does, and compare. sources: of each dtype.

    Raises BuildError where it does not build here, EngineError where a result differs or the layer would not run a
    case by its program.
    """
    kernel = load_emitted(folder, "cpu")
    here = {isa.name for isa in machine_isas()}
    isas = tuple(one for one in dict.fromkeys(row.isa for row in built) if one in here)
    cases: list[Case] = []
    with ExitStack() as stack:
        stack.enter_context(_emptied(kernel.program.LAYER.fallbacks))
        for source in sources:
            if source.example is not None:
                stack.enter_context(evaluating(source.example.module))
        for source in sources:
            cases += _checked(kernel, layer, source, benchmark=benchmark, several=len(sources) > 1)
        for isa in isas:
            rows = {row.program: row for row in built if row.isa == isa}

            def copy_native(program: str, to: Path, rows: dict[str, Prebuilt] = rows) -> bool:
                copy_alone(folder, rows[program], to)
                return True

            _check_alone(folder, kernel, layer, sources, copy_native, f"{isa} code")
        is_interpreted = find_compiler() is None  # what ran above is that, then
        is_shipped = any((folder / "cpu").glob(f"*{SUFFIX}")) and not is_interpreted
        files = (
            _checked_bytecode(folder, kernel, layer, sources) if is_shipped and not no_interpreter() else []
        )
    peer = sources[0].peer
    original = "the original" if peer is None else peer.name
    return Checked(tuple(cases), machine(), isas, original, tuple(files), is_interpreted)


def _checked_bytecode(folder: Path, kernel: ModuleType, layer: str, sources: Sequence[Source]) -> list[str]:
    """The files of bytecode that run here, which give the same as what else the layer runs."""
    files: list[str] = []

    def copy_bytecode(program: str, to: Path) -> bool:
        path = folder / "cpu" / bytecode_name(program)
        if path.is_file():
            shutil.copy(path, to)
            files.append(path.name)
        return path.is_file()

    _check_alone(folder, kernel, layer, sources, copy_bytecode, "bytecode")
    return files


def _checked(kernel: Any, layer: str, source: Source, *, benchmark: bool, several: bool) -> list[Case]:
    program = kernel.program.LAYER
    module = source.example.module if source.example is not None else kernel.load()
    kernel.weights.prepare(module)
    _require(program, layer)
    forward = getattr(kernel.layers, layer).forward
    cases = []
    patient = True
    rounding = _rounding(source.graph)
    for seed, sizes in enumerate(_sizes(source)):
        example = _example(source, module, sizes, seed)
        if not _keeps_assertions(source, example):
            if seed or source.example is None:
                continue
            example, sizes = source.example, _sizes_of(source, source.example)  # noqa: PLW2901 (its own data)

        def compiled(example: Example = example) -> Any:
            args, kwargs = example.call()
            with torch.no_grad():
                return forward(module, *args, **kwargs), args, kwargs

        found = compiled()
        _require(program, layer)
        exact = _Exact(source, example, sizes)
        original = None
        eager: Callable[[], object] = example.run
        if source.peer is not None:
            call = functools.partial(source.peer.call, list(_named(source, example).values()))
            original, eager = _difference(outputs_of_call(source, sizes, *found), call), call
        elif source.example is not None:
            try:
                args, kwargs = example.call()
                with torch.no_grad():
                    expected = module(*args, **kwargs), args, kwargs
            except Exception as error:
                raise OriginalRaisesError(
                    f"{layer}: the original raised {type(error).__name__} for {_shown(sizes)}, which the declared "
                    f"dims allow: {error}; give the dims the range that it takes",
                    of_sizes=_is_free(source.example),
                ) from error
            original = _compared(
                found, expected, layer, sizes, "the original module", exact.call, rounding=rounding
            )
        oracle = None
        if patient:
            started = time.monotonic()
            judged = _judged(source, example)
            oracle = _compared(
                outputs_of_call(source, sizes, *found),
                judged,
                layer,
                sizes,
                "the oracle",
                exact.outputs,
                rounding=rounding,
            )
            patient = time.monotonic() - started < _ORACLE_S
        eager_ms, compiled_ms, ratio = (
            _timed(eager, compiled) if benchmark and original is not None else (None, None, None)
        )
        if not seed and (original is None or _judging_seconds(source.graph, sizes) <= 2 * _JUDGED_S):
            _judge(source, example, compiled, layer, lambda: _require(program, layer))
        dtype = dtype_name(source.example) if several and source.example is not None else ""
        allowed = max(tolerance(one.dtype).layer for one in outputs_of_call(source, sizes, *found))
        cases.append(Case(sizes, original, oracle, eager_ms, compiled_ms, ratio, dtype, seed, allowed))
    return cases


def _judging_seconds(graph: Graph, sizes: Mapping[str, int]) -> float:
    """What the oracle takes with bounds, about, for one set of inputs of these sizes."""
    costs = Costs(sizes)
    nodes = graph.live()
    weights = sum(math.prod(node.results[0].shape) for node in nodes if node.op.name == "parameter")
    return _SECONDS_OF_FLOP * sum(costs.of(node).flops or 0 for node in nodes) + _SECONDS_OF_WEIGHT * weights


def _judge(
    source: Source,
    example: Example,
    compiled: Callable[[Example], tuple[Any, Any, Any]],
    layer: str,
    require: Callable[[], None],
) -> None:
    """Each element of each output, on inputs made for the graph. Raises EngineError for one that is wrong."""
    graph = source.graph
    sizes = _sizes_of(source, example)
    weights = {name: held() if callable(held) else held for name, held in source.arrays.items()}
    judge = Judge(graph, sizes, weights=weights, patience=_JUDGED_S, other_sizes=False)
    for case in judge.cases:
        if not case.oracle.values.get(ASSERTIONS, True):
            continue  # the original raises
        result = compiled(_with_inputs(source, example, case.inputs.arrays))
        require()
        found = [array_of(output) for output in outputs_of_call(source, sizes, *result)]
        if (reason := case.against(dict(zip(case.oracle.values, found, strict=True)))) is not None:
            raise EngineError(f"layer {layer}: {reason}: a defect of the compiler; nothing was written")


def _sizes_of(source: Source, example: Example) -> dict[str, int]:
    named, inputs = _named(source, example), source.graph.inputs
    return bind_shapes(
        {name: one.type for name, one in inputs.items()}, [tuple(named[name].shape) for name in inputs]
    )


def _keeps_assertions(source: Source, example: Example) -> bool:
    """Whether what the forward asserts of data holds in a call: made data hardly ever keep it."""
    return source.assertions is None or bool(_judged(source, example)[source.assertions])


def _with_inputs(source: Source, example: Example, arrays: Mapping[str, Array]) -> Example:
    """The example with other tensors for the inputs of the graph."""
    if source.example is None:
        args, kwargs = source.call_of([_tensor(arrays[name]) for name in source.graph.inputs])
        return replace(example, args=args, kwargs=kwargs)
    leaves, form = pytree.tree_flatten((example.args, dict(example.kwargs)))
    names = paths_of(source.example.module, example.args, example.kwargs)
    given = [
        _tensor(arrays[name]) if name in arrays else leaf for name, leaf in zip(names, leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(given, form)
    return replace(example, args=tuple(args), kwargs=kwargs)


def _check_alone(
    folder: Path,
    kernel: Any,
    layer: str,
    sources: Sequence[Source],
    copied: Callable[[str, Path], bool],
    what: str,
) -> None:
    """The first case of each source, by a form of its program that came along, as if that were all.

    copied: of a program's name and a folder, copies it there; False where there is none.
    """
    forward = getattr(kernel.layers, layer).forward
    program = kernel.program.LAYER
    for source, one in zip(sources, getattr(program, "layers", [program]), strict=True):
        module = source.example.module if source.example is not None else kernel.load()
        sizes = _sizes(source)[0]
        example = _example(source, module, sizes, 0)
        if source.example is not None and not _keeps_assertions(source, example):
            example = source.example
        args, kwargs = example.call()
        bound = inspect.signature(forward).bind(module, *args, **kwargs)
        bound.apply_defaults()
        with tempfile.TemporaryDirectory() as alone, torch.no_grad():
            if not copied(one.table.source, Path(alone)):
                continue
            if (constants := folder / "cpu" / one.table.constants_file).is_file():
                shutil.copy(constants, alone)
            other = type(one)(one.table, Path(alone), one.shipped)
            result = other.call(*bound.arguments.values())
            _require(other, layer)
            args, kwargs = example.call()
            expected = pytree.tree_leaves(forward(module, *args, **kwargs))
        _compared(result, expected, layer, sizes, f"what is built here, in its {what}")


@contextmanager
def _emptied(fallbacks: dict[str, str]) -> Iterator[None]:
    """What calls in the block fall back for, alone: a layer of the same bytes may have been called before."""
    before = dict(fallbacks)
    fallbacks.clear()
    try:
        yield
    finally:
        fallbacks.update(before)


def _require(program: Any, layer: str) -> None:
    if program.fallbacks:
        kind, reason = next(iter(program.fallbacks.items()))
        error = BuildError if kind == "build" else EngineError
        raise error(f"layer {layer} does not run its own example: {reason}")


def first_sizes(source: Source) -> dict[str, int]:
    """The example's sizes."""
    return _sizes(source)[0]


def _sizes(source: Source) -> list[dict[str, int]]:
    inputs = source.graph.inputs
    symbols = sorted(dim_symbols(dim for one in inputs.values() for dim in one.shape))
    odd = {symbol.name: _ODD[index % len(_ODD)] for index, symbol in enumerate(symbols)}
    if source.example is None:
        base = {symbol.name: _within(symbol, 2 if not index else 16) for index, symbol in enumerate(symbols)}
    else:
        example = source.example
        leaves = dict(zip(paths_of(example.module, example.args, example.kwargs),
                          pytree.tree_leaves((example.args, dict(example.kwargs))), strict=True))  # fmt: skip
        types = {name: one.type for name, one in inputs.items()}
        base = bind_shapes(types, [tuple(leaves[name].shape) for name in inputs])
        if _is_free(source.example):
            # Nobody said which sizes may differ, and not every module says so where they must not: a mask as long as
            # the tokens. What was equal stays equal.
            first = {size: name for name, size in reversed(base.items())}
            odd = {name: odd[first[size]] for name, size in base.items()}
    cases = [
        base,
        {symbol.name: _within(symbol, 1) for symbol in symbols},
        {symbol.name: _within(symbol, odd[symbol.name]) for symbol in symbols},
    ]
    windows = _windows(source)
    cases = [_remembered(source, case, windows) for case in cases]
    shapes = [dim for one in inputs.values() for dim in one.shape]
    return [
        case
        for index, case in enumerate(cases)
        if case not in cases[:index] and all(_number(substitute(dim, case)) >= 0 for dim in shapes)
    ]


def _remembered(source: Source, sizes: dict[str, int], windows: Sequence[tuple[Dim, int]]) -> dict[str, int]:
    """The sizes, smaller where a layer of a cache would forget: what it forgot is in the program's results alone.

    The program's results are whole, whatever the lengths: that layers forget is left to the caches that get them.
    """
    symbols = {symbol.name: symbol for symbol in dim_symbols(dim for dim, _ in windows)}
    found = dict(sizes)
    for dim, window in windows:
        names = [symbol.name for symbol in dim_symbols([dim])]
        if names and _number(substitute(dim, found)) >= window:
            most = max(1, (window - 1) // len(names))
            found |= {name: max(symbols[name].min, min(found[name], most)) for name in names}
    if source.example is None or not _is_free(source.example):
        return found
    new = {sizes[name]: size for name, size in found.items() if size != sizes[name]}
    return {name: new.get(size, size) for name, size in sizes.items()}


def _windows(source: Source) -> list[tuple[Dim, int]]:
    """Of each layer of a cache that holds so many tokens at most: its length after the call, and these."""
    lengths = [
        one.shape[LENGTH_AXIS] if len(one.shape) > LENGTH_AXIS else 0 for one in source.graph.outputs.values()
    ]
    found: list[tuple[Dim, int]] = []

    def collect(held: Mapping[int, Held], kinds: Sequence[Kind]) -> None:
        for layer, (keys, *_) in held.items():
            kind = kinds[layer] if 0 <= layer < len(kinds) else None
            if isinstance(kind, int) and keys is not None:
                found.append((lengths[keys.place], kind))

    for cache in _caches_in(source.result):
        collect(cache.numbered(), cache.kinds)
    if source.changed and source.example is not None:
        bound = source.signature.bind(*source.example.args, **source.example.kwargs).arguments
        for name, changed in source.changed.items():
            collect(changed, kinds_of(bound[name]))
    return found


def _caches_in(tree: object) -> Iterator[Cache]:
    if isinstance(tree, Cache):
        yield tree
    elif isinstance(tree, Record):
        yield from _caches_in(tuple(tree.fields.values()))
    elif isinstance(tree, (dict, tuple, list)):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from _caches_in(one)


def _is_free(example: Example) -> bool:
    leaves = pytree.tree_leaves(example.dynamic_shapes, is_leaf=lambda one: one is None)
    return any(leaf is torch.export.Dim.AUTO for leaf in leaves)


def _within(symbol: Symbol, size: int) -> int:
    return max(symbol.min, size if symbol.max is None else min(size, symbol.max))


def _example(source: Source, module: nn.Module, sizes: Mapping[str, int], seed: int) -> Example:
    if source.example is not None:
        shapes = {
            name: [_number(substitute(dim, sizes)) for dim in one.shape]
            for name, one in source.graph.inputs.items()
        }
        limits = {
            name: limit
            for name, value in source.graph.inputs.items()
            if value.dtype.is_integer and (limit := value.index_limit(sizes)) is not None
        }
        return resized(source.example, shapes, seed, limits)
    arrays = source.graph.dummy_inputs(seed, sizes)
    for name, array in arrays.items():
        if "mask" in name and array.dtype.kind in "iu":
            array[...] = 1
    args, kwargs = source.call_of([_tensor(array) for array in arrays.values()])
    return Example(module, args, kwargs)


def _number(dim: Any) -> int:
    return int(dim)


def _tensor(array: Array) -> torch.Tensor:
    from kernels_hub.compiler.engines.tensors import to_tensor

    return to_tensor(np.array(array, order="C"))


def oracle_case(
    source: Source, sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Seeded inputs of these sizes, by name, and what the oracle gives."""
    example = _example(source, nn.Module(), sizes, 0)
    named = _named(source, example)
    return {name: named[name].contiguous() for name in source.graph.inputs}, _judged(source, example)


def weights_of(source: Source, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The weights that the source was compiled with."""
    held = {name: source.arrays[name] for name in names}
    return {name: _tensor(one() if callable(one) else one) for name, one in held.items()}


def _named(source: Source, example: Example) -> dict[str, torch.Tensor]:
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    if source.example is None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return dict(zip(source.graph.inputs, tensors, strict=True))
    return dict(zip(paths_of(source.example.module, example.args, example.kwargs), leaves, strict=True))


def _judged(source: Source, example: Example) -> list[torch.Tensor]:
    named = _named(source, example)
    inputs = {name: array_of(named[name]) for name in source.graph.inputs}
    weights = {name: held() if callable(held) else held for name, held in source.arrays.items()}
    return [_tensor(one) for one in evaluate(source.graph, inputs, weights=weights).values()]


def _difference(ours: Sequence[torch.Tensor], peer: Callable[[], Sequence[torch.Tensor]]) -> float | None:
    """The largest error against another runtime, which is told and not judged by; None where it does not run."""
    try:
        theirs = peer()
    except Exception:  # noqa: BLE001  (it has no one class for what it refuses)
        return None
    if any(tensor.shape != other.shape for tensor, other in zip(ours, theirs, strict=True)):
        return None
    return max(
        [largest_error(tensor, other) for tensor, other in zip(ours, theirs, strict=True)], default=0.0
    )


class _Exact:
    """What the module gives in float32, for where results of 16 bits differ: see `_DEEP`."""

    def __init__(self, source: Source, example: Example, sizes: Mapping[str, int]) -> None:
        self._source, self._example, self._sizes = source, example, sizes

    def call(self) -> Any:
        """The result, and the arguments afterwards; None where the module does not run so."""
        return self._call

    def outputs(self) -> list[torch.Tensor] | None:
        """Those of the graph."""
        try:
            return None if self._call is None else outputs_of_call(self._source, self._sizes, *self._call)
        except LookupError:
            return None

    @functools.cached_property
    def _call(self) -> tuple[Any, ...] | None:
        if self._source.example is None:
            return None
        try:
            module = copy.deepcopy(self._example.module).float()
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda one: one.float() if one.dtype in _NARROW else one, self._example.call()
            )
            with torch.no_grad():
                return module(*args, **kwargs), args, kwargs
        except Exception:  # noqa: BLE001 - its code may be for one dtype only
            return None


def _compared(
    result: object,
    expected: object,
    layer: str,
    sizes: Mapping[str, int],
    what: str,
    exact: Callable[[], Any] | None = None,
    *,
    rounding: float = 0.0,
) -> float:
    """The largest error of all outputs. exact: the outputs in float32, or None, asked for where an error is large.

    rounding: see `_rounding`.
    Raises EngineError where one is too large.
    """
    ours, theirs = _tensors(result), _tensors(expected)
    worst = 0.0
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.shape != other.shape or one.dtype is not other.dtype:
            found = f"{one.dtype}{list(one.shape)}, not {other.dtype}{list(other.shape)}"
            raise EngineError(f"layer {layer} gives {found} of {what}, for {_shown(sizes)}")
        error = largest_error(one, other)
        if not _agree(one, other, error, exact, index, rounding):
            raise EngineError(
                f"layer {layer} differs from {what} by {error:.2g} of the largest magnitude, for {_shown(sizes)}: "
                "a defect of the compiler; nothing was written"
            )
        worst = max(worst, error)
    return worst


def _agree(
    tensor: torch.Tensor,
    other: torch.Tensor,
    error: float,
    exact: Callable[[], Any] | None,
    index: int,
    rounding: float,
) -> bool:
    bound = tolerance(tensor.dtype).layer
    if error <= bound:
        return True
    narrow = tensor.dtype in _NARROW
    if not (narrow or rounding) or exact is None or (outputs := exact()) is None:
        return False
    truth = _tensors(outputs)[index]
    own = largest_error(other, truth)
    if not narrow:
        if own <= bound:  # it is computed of nothing that is rounded to 16 bits
            return False
        bound = rounding
    return largest_error(tensor, truth) <= max(bound, min(_DEEP * bound, own))


def _rounding(graph: Graph) -> float:
    """The tolerance of what a graph computes in 16 bits: a wider result that depends on it may err as much."""
    results = (value.dtype.name for node in graph.live() if node.operands for value in node.results)
    narrow = {str(dtype).removeprefix("torch.") for dtype in _NARROW}
    return max((tolerance(name).layer for name in set(results) & narrow), default=0.0)


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _timed(
    eager: Callable[[], Any], compiled: Callable[[], Any]
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Milliseconds of both, and the ratio; nothing where that does not repeat, or is no more than noise."""
    found = gain(eager, compiled, Device("cpu"), seconds=_TIMED_S)
    if not found.repeats or (found.ratio > 1 and not found.faster):
        return None, None, None
    return found.original * 1e3, found.second.candidate * 1e3, found.ratio


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "the only sizes"
