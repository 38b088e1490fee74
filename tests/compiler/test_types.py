"""The dtype table."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_hub.compiler.errors import TypeRuleError
from kernels_hub.compiler.ir.types import (
    BFLOAT16,
    DTYPES,
    FLOAT8_E4M3FN,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT64,
    dtype,
    pack,
    promote,
    unpack,
)  # fmt: skip


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
def test_a_row_knows_its_numpy_dtype(row):
    assert dtype(row.numpy) is row
    assert dtype(row.name) is row
    assert np.zeros((2,), row.numpy).itemsize * 8 == max(8, row.bits)
    if not row.is_complex:
        low, high = row.limits
        assert low <= high
        assert np.asarray(high).astype(row.numpy).astype(np.float64 if row.is_float else np.uint64) == high


def test_an_unknown_dtype_is_named():
    with pytest.raises(TypeRuleError, match="'float24'"):
        dtype("float24")


@pytest.mark.parametrize(
    ("a", "b", "wider"),
    [
        (FLOAT16, BFLOAT16, FLOAT32),
        (UINT8, INT8, INT16),
        (INT64, FLOAT16, FLOAT16),
        (INT32, INT64, INT64),
        (INT4, UINT8, INT16),
        (FLOAT32, FLOAT64, FLOAT64),
        (FLOAT8_E4M3FN, dtype("float8_e5m2"), FLOAT16),
        (dtype("complex64"), FLOAT64, dtype("complex128")),
        (dtype("bool"), UINT8, UINT8),
    ],
)
def test_promotion(a, b, wider):
    assert promote(a, b) is wider and promote(b, a) is wider


def test_nothing_holds_uint64_and_int64():
    with pytest.raises(TypeRuleError, match="no dtype holds"):
        promote(UINT64, INT64)


def test_compute_and_accumulate():
    assert BFLOAT16.compute is FLOAT32 and FLOAT64.compute is FLOAT64
    assert INT8.accumulate is INT32 and FLOAT16.accumulate is FLOAT32 and INT64.accumulate is INT64


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 16])
def test_packing_is_undone(row, count):
    bits = np.random.default_rng(0).integers(0, 256, count * max(row.bits, 8) // 8, np.uint8)
    data = bits[: (count * row.bits + 7) // 8].copy()
    if row.bits < 8 and count % (8 // row.bits):
        data[-1] &= (1 << (count % (8 // row.bits)) * row.bits) - 1
    if row is dtype("bool"):
        data &= 1
    array = unpack(data, row, (count,))
    assert array.dtype == row.numpy and array.shape == (count,)
    assert pack(array).tobytes() == data.tobytes()


def test_the_first_element_is_in_the_lowest_bits():
    assert pack(np.array([1, -2, 7], np.int8).astype(INT4.numpy)).tolist() == [0xE1, 0x07]
    assert unpack(np.array([0xE1, 0x07], np.uint8), INT4, (3,)).astype(int).tolist() == [1, -2, 7]
    assert unpack(np.array([0x7F], np.uint8), dtype("float4_e2m1fn"), (2,)).astype(float).tolist() == [-6, 6]
    with pytest.raises(TypeRuleError, match=r"int4\[4\] takes 2 bytes, got 1"):
        unpack(np.zeros(1, np.uint8), INT4, (4,))
