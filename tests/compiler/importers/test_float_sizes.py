"""Sizes that are computed in floats, and floats that are computed from sizes, at sizes other than the example's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.torch_export import import_torch
from tests.compiler.importers.torch_programs import Function, check

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

H, W = torch.export.Dim("h", min=4, max=4096), torch.export.Dim("w", min=4, max=4096)
DYNAMIC = {"args": (({2: H, 3: W}),)}


def image(height, width):
    values = torch.randn(1, 2, height, width, generator=torch.Generator().manual_seed(height * width))
    return values + torch.arange(width)


FUNCTIONS = {
    "half": lambda x: interpolate(x, scale_factor=0.5),
    "half, smoothly": lambda x: interpolate(x, scale_factor=0.5, mode="bilinear"),
    "one and a half": lambda x: interpolate(x, scale_factor=1.5, mode="bilinear"),
    "its scale computed again": lambda x: interpolate(
        x, scale_factor=2.0, mode="bilinear", recompute_scale_factor=True
    ),
    "down from the size": lambda x: x.sum() + torch.arange(x.shape[2], -x.shape[2], -1.0),
    "in steps of three": lambda x: x.sum() + torch.arange(0, x.shape[2], 3.0),
    "a quarter, and more": lambda x: x[:, :, : math.ceil(x.shape[2] / 4)],
    "a mean": lambda x: x.sum((2, 3)) * (1 / (x.shape[2] * x.shape[3])),
    "attention's scale": lambda x: x @ x.transpose(2, 3) / x.shape[3] ** 0.5,
    "a sum": lambda x: x * (x.shape[2] ** 0.5 + 0.5) - x.shape[3] / 7,
    "of whole numbers": lambda x: x.long() * (x.shape[2] / 4),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_sizes(name):
    others = [((image(h, w),), {}) for h, w in ((4, 5), (9, 16), (31, 7), (10, 10))]
    check(Function(FUNCTIONS[name]), (image(8, 12),), others=others, dynamic_shapes=DYNAMIC)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([0.25, 0.375, 0.5, 0.75, 1.25, 1.5, 2.5, 3.0]),
    st.lists(st.tuples(st.integers(4, 70), st.integers(4, 70)), min_size=2, max_size=3),
)
def test_exact_scales(scale, sizes):
    others = [((image(h, w),), {}) for h, w in sizes]
    check(
        Function(lambda x: interpolate(x, scale_factor=scale, mode="nearest")),
        (image(8, 12),),
        others=others,
        dynamic_shapes=DYNAMIC,
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: interpolate(x, scale_factor=0.7), "which rounding decides"),
        (lambda x: (x, x.shape[2] * 0.5), "its result is a float that is computed from sizes"),
        (lambda x: x.clamp(max=x.shape[2] * 0.5), "a float that is computed from sizes"),
    ],
    ids=["a scale that no float holds", "a result", "an attribute"],
)
def test_what_is_refused(function, reason):
    with pytest.raises(ImportFailure, match=reason):
        import_torch(Function(function), (image(8, 12),), dynamic_shapes=DYNAMIC)
