"""Runs a schedule in NumPy, every loop as an axis of arrays: slow, obvious, and independent of code generation."""

from __future__ import annotations

import math

import numpy as np

from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.op import ReferenceCall, TensorType
from kernels_hub.compiler.ir.ops.conversion import convert
from kernels_hub.compiler.schedule import kernel as k
from kernels_hub.compiler.schedule.memory import place


class OutOfRange(Exception):
    pass


def run_schedule(
    schedule: k.Schedule, graph: Graph, inputs: dict, sizes: dict[str, int], poison: float = np.nan
):
    """Outputs by name. Memory that nothing wrote is poison."""
    memory: dict[k.Buffer, np.ndarray] = {}
    arena = place(schedule, sizes)
    scratch = np.full(arena.size, 0xFF, np.uint8)
    for buffer in schedule.buffers:
        count = int(_number(buffer.size, sizes, {}))
        if buffer in arena.offsets:
            start, size = arena.offsets[buffer], count * buffer.dtype.numpy.itemsize
            memory[buffer] = scratch[start : start + size].view(buffer.dtype.numpy)
            continue
        memory[buffer] = np.full(count * buffer.dtype.numpy.itemsize, 0xFF, np.uint8).view(buffer.dtype.numpy)
        if buffer.role is k.Role.PARAMETER:
            memory[buffer][:] = np.asarray(graph.weight(buffer.value.attrs["name"])).reshape(-1)
        elif buffer.role is k.Role.CONSTANT:
            memory[buffer][:] = buffer.value.array.reshape(-1)
    for name, buffer in schedule.inputs.items():
        memory[buffer][:] = np.asarray(inputs[name]).reshape(-1)
    with np.errstate(all="ignore"):
        for kernel in (*schedule.prepare, *schedule.kernels):
            for nest in kernel.nests:
                run_nest(nest, memory, sizes)
    return {
        name: memory[buffer].reshape([int(_number(dim, sizes, {})) for dim in buffer.shape])
        for name, buffer in schedule.outputs.items()
    }


def _number(dim, sizes, variables):
    """A dim, evaluated over arrays."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        term = coefficient
        for one, power in monomial:
            for _ in range(power):
                term = term * _atom(one, sizes, variables)
        total = total + term
    return total


def _atom(one, sizes, variables):
    name = getattr(one, "name", None)
    if name is not None:
        return variables[name] if name in variables else sizes[name]
    args = [_number(arg, sizes, variables) for arg in one.args]
    functions = {"floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum, "max": np.maximum}
    result = args[0]
    for arg in args[1:]:
        result = functions[one.kind](result, arg)
    return result


def run_nest(nest: k.Nest, memory, sizes) -> None:
    loops = (*nest.outer, *nest.inner)
    shape = tuple(int(_number(loop.extent, sizes, {})) for loop in loops)
    inner_axes = tuple(range(len(nest.outer), len(loops)))
    variables = {}
    for axis, (loop, size) in enumerate(zip(loops, shape, strict=True)):
        variables[loop.name] = np.arange(size).reshape(
            [-1 if one == axis else 1 for one in range(len(loops))]
        )
    values: dict[str, np.ndarray] = {}
    if nest.anchor is not None:
        values[nest.anchor.name] = _anchor(nest, memory, sizes)
    run_body(nest.body, values, variables, shape, inner_axes, memory, sizes, nest.is_inner())


def run_body(body, values, variables, whole, inner_axes, memory, sizes, inner=None) -> None:
    once = tuple(1 if axis in inner_axes else size for axis, size in enumerate(whole))

    def full(value):
        return np.broadcast_to(np.asarray(value), shape)

    def held(guards):
        result = np.ones(shape, bool)
        for guard in guards:
            place = full(_number(guard.place, sizes, variables))
            result &= (place >= full(_number(guard.low, sizes, variables))) & (
                place < full(_number(guard.high, sizes, variables))
            )
        return result

    for one in body:
        name = one.arg if isinstance(one, k.Store) else one.name
        shape = (
            whole
            if inner is None
            or inner[name]
            or (isinstance(one, k.Store) and _moves(one, variables, inner_axes))
            else once
        )
        if isinstance(one, k.Load):
            place, inside = full(_number(one.place, sizes, variables)), held(one.guards)
            source = memory[one.buffer]
            wrong = inside & ((place < 0) | (place >= len(source)))
            assert not wrong.any(), f"{one} reads out of {len(source)}"
            result = np.zeros(shape, source.dtype)
            result[inside] = source[place[inside]]
        elif isinstance(one, k.Constant):
            result = full(np.asarray(one.value).astype(one.dtype.numpy))
        elif isinstance(one, k.Position):
            result = full(_number(one.place, sizes, variables)).astype(one.dtype.numpy)
        elif isinstance(one, k.Test):
            result = held(one.guards)
        elif isinstance(one, k.Bound):
            arg, extent = full(values[one.arg]).astype(np.int64), full(_number(one.extent, sizes, variables))
            if ((arg < -extent) | (arg >= extent)).any():
                raise OutOfRange(one.message)
            result = np.where(arg < 0, arg + extent, arg)
        elif isinstance(one, k.Compute):
            args = [full(values[arg]) for arg in one.args]
            step = ReferenceCall(args, one.attrs, (TensorType(one.dtype, shape),), lambda *_: ())
            result = np.asarray(one.op.numpy(step)).reshape(shape)
        elif isinstance(one, k.Reduce):
            result = _reduce(one, np.broadcast_to(values[one.arg], whole), inner_axes)
        elif isinstance(one, k.Scan):
            result = _scan(one, np.broadcast_to(values[one.arg], whole), inner_axes)
        else:
            place = full(_number(one.place, sizes, variables))
            target = memory[one.buffer]
            assert place.size == 0 or (place.min() >= 0 and place.max() < len(target)), (
                f"{one} writes out of {len(target)}"
            )
            given = full(values[one.arg]).reshape(-1)
            if isinstance(one, k.Update) and one.reduction != "none":
                _MEETS[one.reduction].at(target, place.reshape(-1), given)
            else:
                target[place.reshape(-1)] = given
            continue
        values[one.name] = result
        variables[f"${one.name}"] = result


_MEETS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduce(one, array, axes):
    """Over the axes, which stay as 1."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(array.shape))
    if one.kind in {"argmax", "argmin"}:
        flat = array.reshape(*[size for axis, size in enumerate(array.shape) if axis not in axes], -1)
        return getattr(np, one.kind)(flat, -1).reshape(kept)
    dtype = one.dtype
    identity = {
        "sum": 0, "prod": 1, "any": False, "all": True,
        "max": -math.inf if dtype.is_float else dtype.limits[0], "min": math.inf if dtype.is_float else dtype.limits[1],
    }[one.kind]  # fmt: skip
    ufunc = {
        "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
        "any": np.logical_or, "all": np.logical_and,
    }[one.kind]  # fmt: skip
    wide = array.astype(np.float64) if dtype.is_float else array.astype(dtype.numpy)
    total = np.asarray(
        ufunc.reduce(wide, axis=axes, keepdims=True, initial=wide.dtype.type(identity), dtype=wide.dtype)
    )
    return convert(total, dtype) if dtype.is_float else total.astype(dtype.numpy)


def _scan(one, array, axes):
    """Along the one inner axis; nothing changes where there is none."""
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[one.kind]
    wide = array.astype(np.float64) if one.dtype.is_float else array.astype(one.dtype.numpy)
    for axis in axes:
        wide = ufunc.accumulate(wide, axis=axis, dtype=wide.dtype)
    assert len(axes) <= 1
    return convert(wide, one.dtype) if one.dtype.is_float else wide


def _moves(store, variables, inner_axes):
    """Whether a store's place depends on an inner loop."""
    names = {one for one in k.variables(store) if one in variables}
    return any(
        variables[one].ndim and any(variables[one].shape[axis] != 1 for axis in inner_axes) for one in names
    )


def _window(view: k.View, memory, sizes):
    shape = [int(_number(dim, sizes, {})) for dim in view.shape]
    place = _number(view.offset, sizes, {})
    for axis, (size, stride) in enumerate(zip(shape, view.strides, strict=True)):
        steps = np.arange(size).reshape([-1 if one == axis else 1 for one in range(len(shape))])
        place = place + steps * _number(stride, sizes, {})
    place = np.broadcast_to(np.asarray(place, np.int64), shape)
    return memory[view.buffer][place]


def _anchor(nest: k.Nest, memory, sizes):
    anchor = nest.anchor
    if isinstance(anchor, k.Product):
        a, b = (_window(view, memory, sizes).astype(np.float64) for view in anchor.views)
        return np.matmul(a, b).astype(np.float32)
    if isinstance(anchor, k.GroupedProduct):
        a, b, ends = (_window(view, memory, sizes) for view in anchor.views)
        result = np.zeros((len(a), b.shape[2]), np.float64)
        groups = np.searchsorted(np.maximum.accumulate(ends), np.arange(len(a)), side="right")
        for row, group in enumerate(groups):
            if group < len(b):
                result[row] = a[row].astype(np.float64) @ b[group].astype(np.float64)
        return result.astype(np.float32)
    if isinstance(anchor, k.Recurrence):
        from kernels_hub.compiler import evaluate

        graph = Graph("recurrent")
        arrays = [_window(view, memory, sizes) for view in anchor.views]
        inputs = [graph.input(str(place), one.shape, one.dtype.name) for place, one in enumerate(arrays)]
        attrs = {
            "cell": anchor.cell, "reverse": anchor.reverse, "lengths": anchor.lengths is not None,
            "quantized": anchor.scales is not None,
        }  # fmt: skip
        graph.output("y", graph.apply("recurrent", *inputs, **attrs))
        return evaluate(graph, {str(place): one for place, one in enumerate(arrays)})["y"]
    if isinstance(anchor, (k.Trees, k.Coupling, k.FewBitsProduct, k.FourierTransform)):
        from kernels_hub.compiler import evaluate

        graph = Graph("alone")
        arrays = [_window(view, memory, sizes) for view in anchor.views]
        inputs = [graph.input(str(place), one.shape, one.dtype.name) for place, one in enumerate(arrays)]
        if isinstance(anchor, k.FewBitsProduct):
            graph.output("y", graph.apply("matmul_few_bits", *inputs, bits=anchor.bits))
        elif isinstance(anchor, k.FourierTransform):
            attrs = {
                "form": anchor.form,
                "inverse": anchor.inverse,
                "axis": anchor.axis,
                "scale": anchor.scale,
            }
            length = anchor.samples if anchor.form == "real" else 0
            graph.output("y", graph.apply("fourier", *inputs, length=length, **attrs))
        elif isinstance(anchor, k.Trees):
            graph.output("y", graph.apply("tree_ensemble", *inputs, aggregate=anchor.aggregate))
        else:
            graph.output("y", graph.apply("pairwise_coupling", *inputs))
        return evaluate(graph, {str(place): one for place, one in enumerate(arrays)})["y"]
    if isinstance(anchor, k.Order):
        x = np.moveaxis(_window(anchor.x, memory, sizes), anchor.axis, -1)
        order = np.argsort(x[..., ::-1] if anchor.descending else x, -1, kind="stable")
        order = x.shape[-1] - 1 - order[..., ::-1] if anchor.descending else order
        if anchor.kth is not None:
            return order[..., int(_number(anchor.kth, sizes, {}))].astype(np.int64)
        return order[..., : int(_number(nest.outer[-1].extent, sizes, {}))].astype(np.int64)
    if isinstance(anchor, k.Convolution):
        graph = Graph("conv")
        x, w = (_window(view, memory, sizes) for view in anchor.views)
        attrs = {
            "strides": anchor.strides,
            "dilations": anchor.dilations,
            "padding": anchor.padding,
            "groups": anchor.groups,
        }
        y = graph.apply("conv", graph.input("x", x.shape), graph.input("w", w.shape), **attrs)
        from kernels_hub.compiler import evaluate

        graph.output("y", y)
        return np.moveaxis(evaluate(graph, {"x": x, "w": w})["y"], 1, -1)
    q, *others = (_window(view, memory, sizes).astype(np.float64) for view in anchor.views)
    groups = q.shape[1] // max(others[0].shape[1], 1)
    key, *v = (np.repeat(one, groups, 1) for one in others)
    score = (np.matmul(q, key.swapaxes(-1, -2)) * anchor.scale).astype(np.float32)
    variables = {
        loop.name: np.arange(size).reshape([-1 if one == axis else 1 for one in range(4)])
        for axis, (loop, size) in enumerate(zip(anchor.score_loops, score.shape, strict=True))
    }
    values = {"score": score}
    run_body(anchor.scores, values, variables, score.shape, (), memory, sizes)
    score = np.broadcast_to(values[anchor.score], score.shape).astype(np.float64)
    if anchor.weights is k.Weights.TOTAL:
        return np.logaddexp.reduce(score, -1, keepdims=True, initial=-np.inf).astype(np.float32)
    if anchor.weights is k.Weights.SCORES:
        return np.matmul(score, *v).astype(np.float32)
    if anchor.blank:
        score = np.where((score == -np.inf).all(-1, keepdims=True), np.nan, score)
    powers = np.exp(score - score.max(-1, keepdims=True)) if score.size else score
    weights = powers / powers.sum(-1, keepdims=True)
    if anchor.blank:
        weights = np.where(np.isnan(score).all(-1, keepdims=True), 0, weights)
    return np.matmul(weights, *v).astype(np.float32)
