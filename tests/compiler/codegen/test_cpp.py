"""Generated C++: golden texts of small schedules, and these run against NumPy at every instruction set level.

To accept other texts, read the difference, then

    ACCEPT_GOLDEN=1 python -m pytest tests/compiler/codegen/test_cpp.py
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.causal import causal_scores, mask_of
from kernels_hub.compiler.codegen.cpp.translation_unit import generate
from kernels_hub.compiler.errors import EngineError, EvaluateError
from kernels_hub.compiler.ir.dims import symbol
from kernels_hub.compiler.ir.types import BFLOAT16, BOOL, FLOAT32, INT64
from kernels_hub.compiler.runtime.toolchain import machine_isas
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import (
    Attention,
    Bound,
    Buffer,
    Constant,
    Convolution,
    Guard,
    Load,
    Position,
    Product,
    Reduce,
    Role,
    Schedule,
    Store,
    View,
)
from kernels_hub.compiler.schedule.kernel import Test as Holds
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.codegen.cpp_runner import Build, compute, load, loops, run_schedule, store
from tests.compiler.oracle import array, assert_same

GOLDEN = Path(__file__).parent / "golden"
Case = tuple[Schedule, dict[str, np.ndarray], dict[str, int], dict[str, np.ndarray]]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def whole(buffer) -> View:
    """All of a buffer."""
    return View(buffer, 0, buffer.shape, buffer.strides)


def scale_and_shift() -> Case:
    """bfloat16 in and out, a vector broadcast along rows, a constant: loops merge where all run on."""
    n = symbol("n", 1)
    build = Build("scale_and_shift")
    x, bias = build.input("x", "bfloat16", n, 6, 40), build.input("bias", "float32", 6)
    y, copy = build.output("y", "bfloat16", n, 6, 40), build.output("copy", "float32", n, 6, 40)
    i, j, k = loops(i=n, j=6, k=40)
    build.kernel("affine", [i, j, k], [], [
        load("v0", x, i.index, j.index, k.index),
        compute("v1", "float32", "cast", "v0", dtype="float32"),
        load("v2", bias, j.index),
        Constant("v3", FLOAT32, 0.5),
        compute("v4", "float32", "mul", "v1", "v3", origin="layer.0.scale (Scale)"),
        compute("v5", "float32", "add", "v4", "v2", origin="layer.0.shift (Shift)"),
        compute("v6", "bfloat16", "cast", "v5", dtype="bfloat16"),
        store(y, "v6", i.index, j.index, k.index),
    ])  # fmt: skip
    build.kernel("widen", [i, j, k], [], [
        load("v0", x, i.index, j.index, k.index),
        compute("v1", "float32", "cast", "v0", dtype="float32"),
        store(copy, "v1", i.index, j.index, k.index),
    ])  # fmt: skip
    given = {"x": array(3, 6, 40, dtype="bfloat16"), "bias": array(6)}
    wide = given["x"].astype(np.float32)
    want = (wide * np.float32(0.5) + given["bias"][:, None]).astype(BFLOAT16.numpy)
    return build.schedule(), given, {"n": 3}, {"y": want, "copy": wide}


def layer_norm() -> Case:
    """Two sums, one after the other, then a pass that computes the row again: lanes along the row."""
    n, width = symbol("rows"), 700
    build = Build("layer_norm")
    x, w = build.input("x", "float32", n, width), build.input("w", "float32", width)
    y = build.output("y", "float32", n, width)
    i, k = loops(i=n, k=width)
    build.kernel("norm", [i], [k], [
        load("v0", x, i.index, k.index),
        Reduce("v1", FLOAT32, "sum", "v0"),
        Constant("v2", FLOAT32, 1 / width),
        compute("v3", "float32", "mul", "v1", "v2"),
        compute("v4", "float32", "sub", "v0", "v3"),
        compute("v5", "float32", "mul", "v4", "v4"),
        Reduce("v6", FLOAT32, "sum", "v5"),
        compute("v7", "float32", "mul", "v6", "v2"),
        compute("v8", "float32", "rsqrt", "v7"),
        compute("v9", "float32", "mul", "v4", "v8", origin="norm (LayerNorm)"),
        load("v10", w, k.index),
        compute("v11", "float32", "mul", "v9", "v10"),
        store(y, "v11", i.index, k.index),
    ])  # fmt: skip
    given = {"x": array(4, width) + np.float32(3), "w": array(width, seed=1)}
    x64 = given["x"].astype(np.float64)
    d = x64 - x64.mean(-1, keepdims=True)
    want = d / np.sqrt((d * d).mean(-1, keepdims=True)) * given["w"]
    return build.schedule(), given, {"rows": 4}, {"y": want.astype(np.float32)}


def softmax_of_columns() -> Case:
    """Softmax along the slow dim, with its maximum's place: lanes across, exponentials kept in scratch."""
    rows, n = 30, symbol("columns")
    build = Build("softmax_of_columns")
    x = build.input("x", "float32", rows, n)
    y, at = build.output("y", "float32", rows, n), build.output("at", "int64", n)
    i, k = loops(i=n, k=rows)
    build.kernel("softmax", [i], [k], [
        load("v0", x, k.index, i.index),
        Reduce("v1", FLOAT32, "max", "v0"),
        Reduce("v9", INT64, "argmax", "v0"),
        compute("v2", "float32", "sub", "v0", "v1"),
        compute("v3", "float32", "exp", "v2"),
        Reduce("v4", FLOAT32, "sum", "v3"),
        compute("v5", "float32", "div", "v3", "v4", origin="softmax (Softmax)"),
        store(y, "v5", k.index, i.index),
        store(at, "v9", i.index),
    ])  # fmt: skip
    given = {"x": array(rows, 70)}
    given["x"][3, 5] = given["x"][7, 5] = 9  # the first of equals
    given["x"][4, 6] = np.nan
    e = np.exp(given["x"] - given["x"].max(0))
    return build.schedule(), given, {"columns": 70}, {"y": e / e.sum(0), "at": given["x"].argmax(0)}


def padded_rows() -> Case:
    """Reads that a guard forbids give 0; a table read at an index that data gave."""
    build = Build("padded_rows")
    table, ids = build.input("table", "float32", 5, 8), build.input("ids", "int64", 6)
    y = build.output("y", "float32", 6, 11)
    i, k = loops(i=6, k=11)
    row = Load("v0", INT64, ids, i.index)
    build.kernel("gather", [i, k], [], [
        row,
        Bound("v1", INT64, "v0", 5, "row of the table out of range"),
        Load("v2", FLOAT32, table, Loop("$v1", 5).index * 8 + k.index - 2, (Guard(k.index - 2, 0, 8),)),
        Holds("v3", BOOL, (Guard(k.index, 0, 10),)),
        Position("v4", FLOAT32, k.index),
        compute("v5", "float32", "select", "v3", "v2", "v4"),
        store(y, "v5", i.index, k.index),
    ])  # fmt: skip
    given = {"table": array(5, 8), "ids": np.array([0, 4, -1, 2, 2, -5])}
    want = np.pad(given["table"][given["ids"]], ((0, 0), (2, 1)))
    want[:, 10] = 10
    return build.schedule(), given, {}, {"y": want}


def linear_gelu() -> Case:
    """A linear layer of rank 3: one product of all rows, packed weight, bias and activation as its epilogue."""
    n = symbol("n", 1)
    build = Build("linear_gelu")
    x = build.input("x", "float32", n, 5, 20)
    w = build.buffer("w", Role.PREPARED, "float32", 33, 20)
    weight, bias = build.input("weight", "float32", 33, 20), build.input("bias", "float32", 33)
    y = build.output("y", "float32", n, 5, 33)
    b, i, j = loops(b=n, i=5, j=33)
    anchor = Product("root", whole(x), View(w, 0, (n, 20, 33), (0, 1, 20)), FLOAT32, "layer.1 (Linear)")
    build.kernel("linear", [b, i, j], [], [
        load("v0", bias, j.index),
        compute("v1", "float32", "add", "root", "v0"),
        compute("v2", "float32", "sigmoid", "v1", origin="layer.2 (SiLU)"),
        compute("v3", "float32", "mul", "v1", "v2"),
        store(y, "v3", b.index, i.index, j.index),
    ], anchor)  # fmt: skip
    copy = Build("prepare")
    (c,) = loops(c=33 * 20)
    copy.kernel("copy", [c], [], [Load("v0", FLOAT32, weight, c.index), store_flat(w, c)])
    given = {"x": array(3, 5, 20), "weight": array(33, 20, seed=1), "bias": array(33, seed=2)}
    z = given["x"].astype(np.float64) @ given["weight"].T.astype(np.float64) + given["bias"]
    made = build.schedule()
    made = Schedule(made.name, made.buffers, tuple(copy.kernels), made.kernels, made.inputs, made.outputs)
    return made, given, {"n": 3}, {"y": (z / (1 + np.exp(-z))).astype(np.float32)}


def store_flat(buffer, loop) -> Store:
    """buffer[…] = v0, row-major."""
    return Store(buffer, loop.index, "v0")


def conv_relu() -> Case:
    """A strided, padded convolution in groups, channels last, with a residual and ReLU as its epilogue."""
    build = Build("conv_relu")
    last = (9 * 8 * 6, 1, 8 * 6, 6)
    x = build.buffer("x", Role.INPUT, "float32", 2, 6, 9, 8, strides=last)
    w = build.input("w", "float32", 4, 3, 3, 3)
    y = build.output("y", "float32", 2, 4, 5, 4, strides=(80, 1, 16, 4))
    residual = build.buffer("residual", Role.INPUT, "float32", 2, 4, 5, 4, strides=(80, 1, 16, 4))
    n, c, h, v = loops(n=2, c=4, h=5, w=4)
    anchor = Convolution(
        "root", whole(x), whole(w), (2, 2), (1, 1), ((1, 1), (1, 1)), 2, FLOAT32, "conv (Conv2d)"
    )
    build.kernel("conv", [n, h, v, c], [], [
        load("v0", residual, n.index, c.index, h.index, v.index),
        compute("v1", "float32", "add", "root", "v0"),
        Constant("v2", FLOAT32, 0.0),
        compute("v3", "float32", "maximum", "v1", "v2", origin="relu (ReLU)"),
        store(y, "v3", n.index, c.index, h.index, v.index),
    ], anchor)  # fmt: skip
    given = {"x": array(2, 6, 9, 8), "w": array(4, 3, 3, 3, seed=1), "residual": array(2, 4, 5, 4, seed=2)}
    x_, w_, r_ = (torch.from_numpy(given[name]) for name in ("x", "w", "residual"))
    want = torch.relu(torch.conv2d(x_, w_, stride=2, padding=1, groups=2) + r_).numpy()
    return build.schedule(), given, {}, {"y": want}


def attention() -> Case:
    """Grouped heads, scale and mask as statements on the scores, a residual after it."""
    n = symbol("queries", 1)
    build = Build("attention")
    q, k = build.input("q", "float32", 2, 4, n, 16), build.input("k", "float32", 2, 2, 7, 16)
    v, mask = build.input("v", "float32", 2, 2, 7, 8), build.input("mask", "bool", 2, 7)
    y, scaled = build.output("y", "float32", 2, 4, n, 8), build.output("scaled", "float32", 2, 4, n, 8)
    b, h, i, e = loops(b=2, h=4, i=n, e=8)
    j = Loop("$j", 7)
    scores = (
        Constant("s0", FLOAT32, 0.25),
        compute("s1", "float32", "mul", "score", "s0"),
        Load("s2", BOOL, mask, b.index * 7 + j.index),
        Constant("s3", FLOAT32, -np.inf),
        compute("s4", "float32", "select", "s2", "s1", "s3"),
    )
    for out, name in ((y, "plain"), (scaled, "doubled")):
        anchor = Attention(
            "root", whole(q), whole(k), whole(v), 1.0, (b, h, i, j), scores, "s4", FLOAT32, blank=True
        )
        body = [compute("v1", "float32", "add", "root", "root")] if name == "doubled" else []
        body.append(store(out, "v1" if body else "root", b.index, h.index, i.index, e.index))
        build.kernel(name, [b, h, i, e], [], body, anchor)
    given = {"q": array(2, 4, 5, 16), "k": array(2, 2, 7, 16, seed=1), "v": array(2, 2, 7, 8, seed=2)}
    given["mask"] = np.array([[True, True, False, True, True, False, True], [False] * 7])
    k2, v2 = np.repeat(given["k"], 2, 1), np.repeat(given["v"], 2, 1)
    s = np.where(given["mask"][:, None, None], given["q"] @ k2.swapaxes(2, 3) * 0.25, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - np.where(np.isinf(s.max(-1, keepdims=True)), 0, s.max(-1, keepdims=True)))
        want = np.nan_to_num(p / p.sum(-1, keepdims=True)) @ v2
    return (
        build.schedule(),
        given,
        {"queries": 5},
        {"y": want.astype(np.float32), "scaled": 2 * want.astype(np.float32)},
    )


def causal_attention() -> Case:
    """Masks that are causal are told to the kernel: as a comparison of places, with a cache of 3 keys."""
    build = Build("causal_attention")
    q, k = build.input("q", "float32", 1, 2, 40, 16), build.input("k", "float32", 1, 2, 43, 16)
    v, y = build.input("v", "float32", 1, 2, 43, 8), build.output("y", "float32", 1, 2, 40, 8)
    b, h, i, e = loops(b=1, h=2, i=40, e=8)
    j = Loop("$j", 43)
    scores = (
        Position("s0", INT64, j.index),
        Position("s1", INT64, i.index + 3),
        compute("s2", "bool", "le", "s0", "s1"),
        Constant("s3", FLOAT32, -np.inf),
        compute("s4", "float32", "select", "s2", "score", "s3"),
    )
    anchor = Attention("root", whole(q), whole(k), whole(v), 0.5, (b, h, i, j), scores, "s4", FLOAT32)
    build.kernel("causal", [b, h, i, e], [], [store(y, "root", b.index, h.index, i.index, e.index)], anchor)
    given = {"q": array(1, 2, 40, 16), "k": array(1, 2, 43, 16, seed=1), "v": array(1, 2, 43, 8, seed=2)}
    s = np.where(np.tri(40, 43, 3, dtype=bool), given["q"] @ given["k"].swapaxes(2, 3) * 0.5, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return build.schedule(), given, {}, {"y": (p / p.sum(-1, keepdims=True) @ given["v"]).astype(np.float32)}


CASES: tuple[Callable[[], Case], ...] = (
    scale_and_shift, layer_norm, softmax_of_columns, padded_rows, linear_gelu, conv_relu, attention,
    causal_attention,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.__name__)
def test_the_text_is_the_golden_one(case):
    text = generate(case()[0]).source
    file = GOLDEN / f"{case.__name__}.cpp"
    if os.environ.get("ACCEPT_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"read the difference to {file}, then accept it with ACCEPT_GOLDEN=1"


def together() -> Case:
    """All cases as one schedule, so that the compiler runs once."""
    buffers, prepare, kernels = [], [], []
    inputs, outputs, given, sizes, expected = {}, {}, {}, {}, {}
    for case in CASES:
        schedule, arrays, numbers, wanted = case()
        buffers += schedule.buffers
        prepare += schedule.prepare
        kernels += schedule.kernels
        sizes |= numbers
        for mine, theirs in (
            (inputs, schedule.inputs), (outputs, schedule.outputs), (given, arrays), (expected, wanted)
        ):  # fmt: skip
            mine.update({f"{case.__name__}: {name}": one for name, one in theirs.items()})
    schedule = Schedule("together", tuple(buffers), tuple(prepare), tuple(kernels), inputs, outputs)
    return schedule, given, sizes, expected


@needs_compiler
@pytest.mark.parametrize(
    "level",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.exhaustive] * (one.name == "avx2"))
        for one in machine_isas()
    ],
)
def test_it_computes_what_numpy_does(level):
    schedule, inputs, sizes, expected = together()
    got = run_schedule(schedule, inputs, sizes=sizes, level=level)
    assert len(expected) == 11
    for name, want in expected.items():
        try:
            assert_same(got[name], want)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@needs_compiler
def test_an_index_out_of_range_fails_the_call():
    schedule, inputs, sizes, _ = padded_rows()
    with pytest.raises(EvaluateError, match="row of the table out of range"):
        run_schedule(schedule, inputs | {"ids": np.array([0, 1, 2, 3, 4, 5])}, sizes=sizes)


@needs_compiler
def test_rows_that_are_gathered_are_summed_side_by_side():
    """Its index is read once for a row, whose elements are lanes; elements that lie apart would be gathered anew."""
    graph = Graph("bags")
    table, at = graph.input("table", (50, 16)), graph.input("at", ("n", 20), "int64")
    graph.output("y", table.gather(at, 0).reduce("sum", [1]))
    text = generate(schedule(graph)).source
    assert text.count("kh::bounded(") == 1
    assert text.index("kh::bounded(") < text.index("#pragma omp simd"), "an index an element"
    assert "_sum[" in text, "no lanes"


def test_no_rows_are_no_work():
    schedule, _, _, _ = layer_norm()
    got = run_schedule(schedule, {"x": np.zeros((0, 700), np.float32), "w": array(700)}, sizes={"rows": 0})
    assert got["y"].shape == (0, 700)


def test_equal_kernels_are_one_function():
    build = Build("twice")
    x, y, z = build.input("x", "float32", 8), build.output("y", "float32", 8), build.output("z", "float32", 8)
    (i,) = loops(i=8)
    for out in (y, z):
        build.kernel(f"k0_{out.name}", [i], [], [load("v0", x, i.index), store(out, "v0", i.index)])
    text = generate(build.schedule()).source
    assert text.count("static void") == 1
    assert "k0_y(in_x, out_y);  // model.k0_y" in text
    assert "k0_y(in_x, out_z);  // model.k0_z" in text


def test_constant_masks_are_understood():
    """(mask, the offset that it stands for)"""
    for mask, expected in (
        (np.tri(5, 7, dtype=bool), 0),
        (np.tri(5, 7, 2, dtype=bool), 2),
        (np.tri(5, 7, -2, dtype=bool), -2),
        (np.ones((5, 7), bool), 6),
        (np.tri(5, 7, dtype=bool)[::-1], None),
        (np.arange(35).reshape(5, 7) % 3 > 0, None),
    ):
        graph = Graph("mask")
        buffer = Buffer("mask", Role.CONSTANT, BOOL, (5, 7), (7, 1), graph.constant(mask))
        i, j = loops(i=5, j=7)
        scores = (
            load("s0", buffer, i.index, j.index),
            Constant("s1", FLOAT32, -np.inf),
            compute("s2", "float32", "select", "s0", "score", "s1"),
        )
        q = Buffer("q", Role.INPUT, FLOAT32, (1, 1, 5, 4), (20, 20, 4, 1))
        score_loops = (*loops(b=1, h=1), i, j)
        anchor = Attention("root", whole(q), whole(q), whole(q), 1.0, score_loops, scores, "s2", FLOAT32)
        found = causal_scores(anchor, anchor.scores, anchor.score)
        assert (found and found[0]) == expected, mask
        assert found is None or found[1:] == ((), "score")


@pytest.mark.parametrize("kind", ["mask", "of the score", "not the last", "another fill", "behind a softcap"])
def test_masks_that_hide_are_found(kind):
    i, j = loops(i=5, j=7)
    buffer = Buffer("mask", Role.INPUT, BOOL, (5, 7), (7, 1))
    q = Buffer("q", Role.INPUT, FLOAT32, (1, 1, 5, 4), (20, 20, 4, 1))
    condition = [load("s0", buffer, i.index, j.index)]
    if kind == "of the score":
        condition += [Constant("c", FLOAT32, 0.0), compute("s0", "bool", "lt", "c", "score")]
    soft = [compute("t", "float32", "tanh", "score")] if kind == "behind a softcap" else []
    kept = "t" if soft else "score"
    scores = [*condition[-2:], *soft, Constant("s1", FLOAT32, 0.0 if kind == "another fill" else -np.inf)]
    scores.append(compute("s2", "float32", "select", "s0", kept, "s1"))
    if kind == "not the last":
        scores.append(compute("s3", "float32", "add", "s2", "score"))
    anchor = Attention(
        "root",
        whole(q),
        whole(q),
        whole(q),
        1.0,
        (*loops(b=1, h=1), i, j),
        tuple(scores),
        scores[-1].name,
        FLOAT32,
    )
    found = mask_of(anchor.scores, anchor.score)
    if kind not in {"mask", "behind a softcap"}:
        assert found is None
    else:
        assert found == ((condition[0],), "s0", kind == "mask")


def test_a_dtype_without_c_type_is_refused():
    build = Build("tiny")
    x, y = build.input("x", "float8_e5m2", 4), build.output("y", "float8_e5m2", 4)
    (i,) = loops(i=4)
    build.kernel("copy", [i], [], [load("v0", x, i.index), store(y, "v0", i.index)])
    with pytest.raises(EngineError, match="no element type for float8_e5m2"):
        generate(build.schedule())
