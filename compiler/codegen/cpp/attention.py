"""Attention on the runtime's online softmax; the statements of its scores are the mask function.

Where the rest of the nest is no plain store, the result goes to memory of the call, and a nest of its own reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.causal import causal_scores, mask_of
from kernels_hub.compiler.codegen.cpp.nest import print_nest
from kernels_hub.compiler.codegen.cpp.scalar import Cpp
from kernels_hub.compiler.codegen.cpp.text import CppBody, Parameters
from kernels_hub.compiler.codegen.loops import levels
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import variable_name
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.types import FLOAT32
from kernels_hub.compiler.schedule.index import Loop, Ranges, linear, row_major
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Buffer,
    Compute,
    Constant,
    Load,
    Nest,
    Role,
    Statement,
    Store,
    View,
    Weights,
    arguments,
    variables,
)


def print_attention(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool) -> Parameters:
    """Write the function of a nest whose anchor is an attention."""
    anchor = nest.anchor
    assert isinstance(anchor, Attention)
    shape = tuple(loop.extent for loop in nest.outer)
    hides = anchor.weights is not Weights.SCORES  # what is -inf
    masked = causal_scores(anchor, anchor.scores, anchor.score) if hides else None
    parameters = Parameters.of(nest, (*shape, *(masked[:1] if masked else ())))
    if masked:
        mask = {one.buffer for one in anchor.scores if isinstance(one, Load)}
        mask -= {one.buffer for one in (*masked[1], *nest.body) if isinstance(one, Load)}
        for buffer in mask - {view.buffer for view in anchor.views}:
            del parameters.reads[buffer]
    rest: Parameters | None = None
    direct = stored_in_place(nest)
    if direct is None:
        result = Buffer(f"{name}_result", Role.SCRATCH, FLOAT32, shape, row_major(shape))
        names.add(result)
        load = Load(anchor.name, FLOAT32, result, result.place(tuple(loop.index for loop in nest.outer)))
        after = Nest(nest.outer, nest.inner, (load, *nest.body))
        rest = print_nest(f"{name}_rest", after, lines, names, round_ops=round_ops)
        lines.add()
        direct = View(result, 0, shape, result.strides)
    scalars = Cpp(Ranges(nest.outer))
    index = scalars.index
    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        if rest is not None:
            space = f"{names.buffers[direct.buffer]}_space"
            lines.add(f"const kh::Row<float> {space}({index(direct.buffer.size)});")
            lines.add(f"float* const {names.buffers[direct.buffer]} = &{space}[0];")
        v = anchor.v or anchor.k  # of totals, nothing is read of it
        strides = [
            ("q", anchor.q.strides),
            ("k", anchor.k.strides),
            ("v", v.strides),
            ("out", direct.strides),
        ]
        for word, steps in strides:
            lines.add(f"const int64_t {word}_strides[] = {{{', '.join(map(index, steps))}}};")
        scale, scores, score = scaled(anchor, *(masked[1:] if masked else (anchor.scores, anchor.score)))
        seen = f"true, {index(masked[0])}" if masked else "false, 0"
        reaches = _print_reaches(anchor, scores, score, lines, names, round_ops=round_ops) if hides else ""
        weights = _named_weights(anchor, reaches)
        lines.add(f"const kh::Attention shape{{{_shape(anchor, shape, scalars, seen)}{weights}}};")
        q, k, values, out = (
            names.buffers[view.buffer] + (f" + {index(view.offset)}" if view.offset != 0 else "")
            for view in (anchor.q, anchor.k, v, direct)
        )
        factor = scalars.literal(scale, FLOAT32)
        function = "attend_masked" if score == "score" else "attend"
        call = f"kh::{function}(shape, {q}, q_strides, {k}, k_strides, {values}, v_strides, {factor},"
        if score == "score":
            lines.add(f"{call} nullptr, nullptr, {out}, out_strides);")
        else:
            lines.add(call)
            _print_scores(anchor, scores, score, lines, names, round_ops=round_ops)
            lines.add(f"           {out}, out_strides);")
        if rest is not None:
            lines.add(f"{name}_rest({', '.join(rest.passed(names))});")
    return parameters


def _shape(anchor: Attention, shape: Sequence[Dim], scalars: Cpp, seen: str) -> str:
    batch, heads, queries, wide = shape
    wide = 0 if anchor.v is None else wide
    dims = [batch, heads, anchor.k.shape[1], queries, anchor.k.shape[2], anchor.q.shape[3], wide]
    text = ", ".join(map(scalars.index, dims))
    return f"{text}, {seen}, {str(anchor.blank).lower()}"


def _named_weights(anchor: Attention, reaches: str) -> str:
    """What the shape says behind the mask; nothing of a softmax."""
    if anchor.weights is Weights.SOFTMAX:
        return reaches
    return f"{reaches or ', {}'}, kh::Weights::{anchor.weights.value}"


def stored_in_place(nest: Nest) -> View | None:
    """Where the result is stored, if that is all that happens to it."""
    anchor = nest.anchor
    assert anchor is not None
    if len(nest.body) != 1 or nest.inner or not isinstance(nest.body[0], Store):
        return None
    store = nest.body[0]
    if store.arg != anchor.name or store.buffer.dtype is not FLOAT32:
        return None
    found = linear(store.place, [loop.name for loop in nest.outer])
    if found is None or variables(store) - {loop.name for loop in nest.outer}:
        return None
    shape = tuple(loop.extent for loop in nest.outer)
    return View(store.buffer, found[1], shape, tuple(found[0][loop.name] for loop in nest.outer))


def scaled(
    anchor: Attention, scores: tuple[Statement, ...], score: str
) -> tuple[float, tuple[Statement, ...], str]:
    """The scale, the statements after it, and the name of their result: a first product with a number is the scale."""
    numbers = {
        statement.name: float(statement.value)
        for statement in scores
        if isinstance(statement, Constant) and statement.dtype.is_float
    }
    users = [statement for statement in scores if "score" in arguments(statement)]
    if len(users) != 1 or not isinstance(users[0], Compute) or users[0].op.name not in {"mul", "div"}:
        return anchor.scale, scores, score
    first = users[0]
    other = next((arg for arg in first.args if arg != "score"), None)
    if other not in numbers or (first.op.name == "div" and first.args[0] != "score"):
        return anchor.scale, scores, score
    factor = numbers[other] if first.op.name == "mul" else 1 / numbers[other]
    rest = tuple(_renamed(statement, first.name) for statement in scores if statement is not first)
    return anchor.scale * factor, rest, "score" if score == first.name else score


def _renamed(statement: Statement, name: str) -> Statement:
    """A statement that uses the score instead of a name."""
    if isinstance(statement, Compute) and name in statement.args:
        return replace(statement, args=tuple("score" if arg == name else arg for arg in statement.args))
    return statement


def _print_reaches(
    anchor: Attention, scores: Sequence[Statement], score: str, lines: Lines, names: Names, *, round_ops: bool
) -> str:
    """Look at the mask, if there is one; the rest of the shape, which says where what was found lies."""
    found = mask_of(scores, score)
    if found is None:
        return ""
    statements, condition, plain = found
    *loops, keys = anchor.score_loops
    body = CppBody(lines, names, anchor.score_loops, round_ops=round_ops)
    body.know(statements)
    at = levels(statements, anchor.score_loops)
    used = _used(statements)
    sizes: list[Dim] = [loop.extent if loop.name in used else 1 for loop in loops]
    steps = [product(sizes[index + 1 :]) if loop.name in used else 0 for index, loop in enumerate(loops)]
    count = body.index(keys.extent)
    lines.add(f"const kh::Row<kh::Reach> reaches({body.index(product(sizes))});")
    head = f"kh::find_reaches({', '.join(map(body.index, sizes))}, {count}, &reaches[0],"
    with lines.block(f"{head} [=]({_given(loops, used)})", "});"):
        for level in range(len(anchor.score_loops)):
            body.emit_at(statements, at, level)
        with lines.block(f"return kh::reach_of({count}, [=]({_given([keys], used)})", "});"):
            body.emit_at(statements, at, len(anchor.score_loops))
            lines.add(f"return {body.use(condition)};")
    return f", {{&reaches[0], {{{', '.join(map(body.index, steps))}}}, {str(plain).lower()}}}"


def _print_scores(
    anchor: Attention,
    scores: tuple[Statement, ...],
    score: str,
    lines: Lines,
    names: Names,
    *,
    round_ops: bool,
) -> None:
    """The mask function: one query, some keys."""
    loops = anchor.score_loops
    keys = loops[3]
    body = CppBody(lines, names, loops, round_ops=round_ops)
    body.know(scores)
    body.dtypes["score"] = FLOAT32
    at = levels(scores, loops, own={"score": len(loops)})
    used = _used(scores)
    head = f"           [=]({_given(loops[:3], used)}, int64_t j, int64_t count, float* scores)"
    with lines.block(head, "},"):
        for level in range(len(loops)):
            body.emit_at(scores, at, level)
        lines.add("#pragma omp simd")
        with lines.block("for (int64_t l = 0; l < count; ++l)"):
            if keys.name in used:
                lines.add(f"const int64_t {variable_name(keys.name)} = j + l;")
            lines.add("const float score = scores[l];")
            body.emit_at(scores, at, len(loops))
            lines.add(f"scores[l] = {body.use(score)};")


def _used(body: Sequence[Statement]) -> frozenset[str]:
    """The variables of loops that statements read."""
    return frozenset[str]().union(*(variables(statement) for statement in body))


def _given(loops: Sequence[Loop], used: frozenset[str]) -> str:
    """Parameters of a function of loops' variables; those that it does not use have no name."""
    return ", ".join(
        f"int64_t {variable_name(loop.name)}" if loop.name in used else "int64_t" for loop in loops
    )
