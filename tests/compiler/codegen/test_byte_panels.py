"""Products of bytes are exact on every instruction set, with VNNI and without."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.compiler.codegen.runtime_harness import build, needs_compiler, targets

SOURCE = """
#include "byte_panels.h"
extern "C" int64_t size(int64_t columns, int64_t depth) { return kh::byte_panels_size(columns, depth); }
extern "C" int64_t width(int64_t columns) { return kh::round_up(columns, kh::kBytePanel); }
extern "C" void pack(int64_t columns, int64_t depth, const int8_t* from, int32_t* to) {
  kh::pack_bytes(from, columns, depth, depth, 1, to);
}
extern "C" void sums(int64_t columns, int64_t depth, const int32_t* packed, int32_t* to) {
  std::copy_n(kh::column_sums(packed, columns, depth), columns, to);
}
extern "C" void best(int64_t rows, int64_t columns, int64_t depth, const uint8_t* q, const int32_t* packed, int32_t* out) {
  kh::byte_product(q, rows, depth, packed, columns, out, kh::round_up(columns, kh::kBytePanel));
}
extern "C" void steps(int64_t rows, int64_t columns, int64_t depth, const uint8_t* q, const int32_t* packed, int32_t* out) {
  kh::byte_products<kh::SeveralSteps>(q, rows, depth, packed, columns, out, kh::round_up(columns, kh::kBytePanel));
}
"""

VOID = ctypes.c_void_p

pytestmark = needs_compiler


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("bytes"), "bytes", SOURCE, request.param)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (20, 5), (64, 16), (200, 33), (256, 301)])
def test_products_of_bytes_are_exact(library, rows, columns, depth):
    random = np.random.default_rng(rows * columns + depth)
    weight = random.integers(-128, 128, (columns, depth)).astype(np.int8)
    weight[0], weight[-1] = -128, 127
    wide = -(-depth // 4) * 4
    q = np.zeros((rows, wide), np.uint8)
    q[:, :depth] = random.integers(0, 256, (rows, depth))
    q[0, :depth] = 255
    packed = np.empty(library.size(columns, depth), np.int32)
    sums = np.empty(columns, np.int32)
    out = np.empty((rows, library.width(columns)), np.int32)
    pointers = [array.ctypes.data_as for array in (weight, packed, sums, q, out)]
    from_weight, to_packed, to_sums, from_q, to_out = (make(VOID) for make in pointers)
    library.pack(columns, depth, from_weight, to_packed)
    library.sums(columns, depth, to_packed, to_sums)
    np.testing.assert_array_equal(sums, weight.astype(np.int32).sum(1))
    expected = q[:, :depth].astype(np.int32) @ weight.astype(np.int32).T
    for function in (library.best, library.steps):
        out[:] = -1
        function(rows, columns, depth, from_q, to_packed, to_out)
        np.testing.assert_array_equal(out[:, :columns], expected)
