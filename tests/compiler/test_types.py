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
    promote,
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
