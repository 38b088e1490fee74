"""The Triton spelling of every pointwise op compiles for a GPU that need not be here, with the result's dtype."""

from __future__ import annotations

import importlib.util

import pytest

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.op import TensorType, Trait
from kernels_hub.compiler.ir.ops import OPS
from kernels_hub.compiler.ir.types import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8

pytest.importorskip("triton", reason="needs Triton")

from tests.layers.triton_compile import compile_kernel

POINTER = {
    FLOAT32: "*fp32",
    FLOAT64: "*fp64",
    INT32: "*i32",
    INT64: "*i64",
    INT8: "*i8",
    UINT8: "*u8",
    BOOL: "*i1",
}
UNSPELLED = {("pow", INT32), ("pow", INT64), ("pow", INT8), ("pow", UINT8)}
"""What Triton has no expression for: engines decline it."""

HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel(a, b, c, y):
    i = tl.arange(0, 128)
    x0 = tl.load(a + i)
    x1 = tl.load(b + i)
    mask = tl.load(c + i) != 0
    total = tl.zeros((128,), tl.float32)
"""


def body(dtype) -> str:
    """One line an op, each result used, so that nothing is left out."""
    lines = []
    for row in OPS.values():
        if Trait.POINTWISE not in row.traits or row.name in {"complex", "real", "imag"}:
            continue
        types = [BOOL, dtype, dtype] if row.name == "select" else [dtype] * row.bounds[1]
        given = {"bitcast": {"dtype": {32: INT32, 64: INT64}.get(dtype.bits, INT8)}, "cast": {"dtype": INT32}}
        try:
            attrs = row.normalise(given.get(row.name, {}))
            (result,) = row.infer([TensorType(one, (128,)) for one in types], attrs)
        except TypeRuleError:
            continue
        text = row.spell("triton", dtype.kind)
        if text is None:
            assert (row.name, dtype) in UNSPELLED, f"{row.name} has no Triton spelling for {dtype}"
            continue
        if row.name == "bitcast" and dtype is BOOL:
            continue
        operands = ("mask", "x0", "x1") if row.name == "select" else ("x0", "x1")
        name, to = f"r{len(lines)}", result.dtype.triton  # a name each: Triton fixes the type of a name
        expression = text.format(*operands, dtype=to)
        lines.append(
            f"    {name} = {expression}\n    tl.static_assert({name}.dtype == {to})\n    total += {name}.to(tl.float32)"
        )
    assert len(lines) > 9
    return "\n".join([*lines, "    tl.store(y + i, total)\n"])


@pytest.mark.parametrize("dtype", POINTER, ids=str)
def test_the_triton_spelling_compiles(dtype, tmp_path):
    path = tmp_path / f"spelled_{dtype}.py"
    path.write_text(HEAD + body(dtype))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"a": POINTER[dtype], "b": POINTER[dtype], "c": "*i8", "y": "*fp32"}
    assert compile_kernel(module.kernel, signature, {}, "sm_90").registers > 0
