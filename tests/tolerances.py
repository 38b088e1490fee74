"""The one place that says how close two tensors must be, per dtype of the computation's result.

A result is compared with a reference computed in float64 from the same (already rounded) inputs.
Two figures must hold: the relative error in the Frobenius norm, and the largest absolute error in
units of the reference's largest magnitude. NaN and inf never pass unless the reference has them at
the same places.
"""

from __future__ import annotations

import torch

# dtype -> (relative error in norm, largest error / largest magnitude)
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (2e-6, 1e-5),
    torch.float16: (2e-3, 4e-3),
    torch.bfloat16: (1e-2, 2e-2),
}


def errors(actual: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """(relative error in norm, largest error / largest magnitude), both in float64."""
    a, r = actual.detach().to(torch.float64).cpu(), reference.detach().to(torch.float64).cpu()
    difference = a - r
    norm, largest = r.norm().item(), r.abs().max().item() if r.numel() else 0.0
    if r.numel() == 0:
        return 0.0, 0.0
    return difference.norm().item() / (norm or 1.0), difference.abs().max().item() / (largest or 1.0)


def assert_close(
    actual: torch.Tensor, reference: torch.Tensor, *, dtype: torch.dtype | None = None, factor: float = 1.0
) -> None:
    """Raise AssertionError unless `actual` is `reference` up to the rounding of `dtype`.

    dtype: whose tolerance applies (default: that of `actual`). factor: widens both bounds, for
    results that accumulate over several rounded steps; say why where it is not 1.
    """
    assert actual.shape == reference.shape, f"shape {tuple(actual.shape)}, expected {tuple(reference.shape)}"
    dtype = dtype or actual.dtype
    special = ~torch.isfinite(reference.detach().cpu().to(torch.float64))
    if special.any():
        a = actual.detach().cpu().to(torch.float64)
        r = reference.detach().cpu().to(torch.float64)
        assert torch.equal(torch.nan_to_num(a[special], nan=7.0), torch.nan_to_num(r[special], nan=7.0)), (
            "NaN or inf at other places than in the reference"
        )
        keep = ~special
        actual, reference = a[keep], r[keep]
    relative, largest = errors(actual, reference)
    bound_relative, bound_largest = (bound * factor for bound in TOLERANCE[dtype])
    assert relative <= bound_relative and largest <= bound_largest, (
        f"relative error {relative:.3g} (bound {bound_relative:.3g}), "
        f"largest error / largest magnitude {largest:.3g} (bound {bound_largest:.3g}) for {dtype}"
    )
