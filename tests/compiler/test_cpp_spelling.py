"""The C++ spelling of every pointwise op, compiled and run, against the oracle."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from kernels_hub.compiler import Graph, evaluate
from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from tests.compiler.oracle import assert_same

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DTYPES = (FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, BOOL)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 20.0, np.inf, -np.inf, np.nan)


def _operands(row, dtype: DType) -> list[np.ndarray]:
    """Every pair of special values (what C++ leaves undefined left out), or every value and shifts in range."""
    values = (
        SPECIAL
        if dtype.is_float
        else (0, 1)
        if dtype is BOOL
        else (0, 1, 2, 3, 7, 100, *(() if dtype is UINT8 else (-1, -3, -8)))
    )
    count = row.bounds[1] - (row.name == "select")
    columns = [one.reshape(-1) for one in np.meshgrid(*[np.array(values)] * count)]
    if not dtype.is_float and row.name in {"div", "floordiv", "mod", "fmod"}:
        columns = [column[columns[1] != 0] for column in columns]
    if not dtype.is_float and row.name == "pow":
        columns = [column[columns[1] >= 0] for column in columns]
    if row.name == "pow" and not dtype.is_float:
        columns = [column[columns[0] <= 3] for column in columns]
        columns[1] = np.minimum(columns[1], 3)
    if dtype.is_float and row.name in {"floordiv", "mod", "fmod"}:  # NumPy has its own rules for infinities
        usable = np.isfinite(columns[0]) & np.isfinite(columns[1]) & (columns[1] != 0)
        columns = [column[usable] for column in columns]
    columns = [column.astype(dtype.numpy) for column in columns]
    return [np.arange(len(columns[0])) % 2 == 0, *columns] if row.name == "select" else columns


def _types(row, dtype: DType) -> list[DType]:
    return [BOOL, dtype, dtype] if row.name == "select" else [dtype] * row.bounds[1]


def _cases():
    for row in OPS.values():
        if Trait.POINTWISE not in row.traits or row.name in {"complex", "real", "imag"}:
            continue
        for dtype in DTYPES:
            attrs = {
                "bitcast": {"dtype": {32: INT32, 64: INT64}.get(dtype.bits, INT8)},
                "cast": {"dtype": INT32},
            }.get(row.name, {})
            if row.name == "bitcast" and dtype is BOOL:
                continue
            try:
                attrs = row.normalise(attrs)
                (result,) = row.infer([TensorType(one, (3,)) for one in _types(row, dtype)], attrs)
            except TypeRuleError:
                continue
            yield row, dtype, attrs, result.dtype


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """One function an op and dtype: f(count, result, operands…)."""
    lines = [
        "#include <algorithm>",
        "#include <bit>",
        "#include <cmath>",
        "#include <cstdint>",
        'extern "C" {',
    ]
    for row, dtype, _, result in _cases():
        types = _types(row, dtype)
        arguments = ", ".join(f"const {one.cpp}* a{i}" for i, one in enumerate(types))
        loads = " ".join(f"{one.cpp} x{i} = a{i}[i];" for i, one in enumerate(types))
        text = row.spell("cpp", dtype.kind)
        assert text is not None, f"{row.name} has no C++ spelling for {dtype}"
        expression = text.format(*(f"x{i}" for i in range(len(types))), dtype=result.cpp)
        lines.append(
            f"void {row.name}_{dtype}(long n, {result.cpp}* y, {arguments}) "
            f"{{ for (long i = 0; i < n; i++) {{ {loads} y[i] = {expression}; }} }}"
        )
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "ops.cpp").write_text("\n".join([*lines, "}"]))
    command = [
        "g++",
        "-std=c++20",
        "-O0",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "ops.so"),
        str(folder / "ops.cpp"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(folder / "ops.so"))


@pytest.mark.parametrize(
    ("row", "dtype", "attrs", "to"),
    list(_cases()),
    ids=lambda one: str(one) if not isinstance(one, dict) else "",
)
def test_the_cpp_spelling_computes_what_the_oracle_does(library, row, dtype, attrs, to):
    operands = _operands(row, dtype)
    if row.name == "cast" and dtype.is_float:
        operands = [operands[0][np.isfinite(operands[0])]]
    graph = Graph("g")
    values = [graph.input(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(operands)]
    graph.output("y", graph.apply(row.name, *values, **attrs))
    expected = evaluate(graph, operands)["y"]
    got = np.empty(expected.shape, to.numpy)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (got, *operands)]
    getattr(library, f"{row.name}_{dtype}")(ctypes.c_long(got.size), *pointers)
    assert_same(got, expected)
