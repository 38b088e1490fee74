"""The derivative of Fourier transforms: they are linear, and their matrices symmetric."""

from __future__ import annotations

import numpy as np

from kernels_hub.compiler.autodiff.rule import Derivative, Gradients, Site
from kernels_hub.compiler.ir.graph import Value


def _fourier(site: Site) -> Gradients:
    """Transposed, a complex matrix of parts is that of the other direction."""
    axis, form, scale = site.attrs["axis"], site.attrs["form"], site.attrs["scale"]
    if form == "real":
        return _of_samples(site.gradient, axis, site.attrs["length"], scale)
    real, imaginary = site.gradient.parts()
    if form == "half":
        lacking = site.x.shape[axis] - real.shape[axis]
        padding = [(0, lacking if one == axis else 0) for one in range(real.rank)]
        real, imaginary = real.pad(padding), imaginary.pad(padding)
    inverse = not site.attrs["inverse"]
    back = real.apply("fourier", real, imaginary, axis=axis, inverse=inverse, scale=scale)
    return list(back.parts())[: len(site.operands)]


def _of_samples(g: Value, axis: int, length: int, scale: float) -> Gradients:
    """Each frequency but the first and the middle one stands for its mirror image, too."""
    spectrum = g.apply("fourier", g, axis=axis, form="half", scale=scale)
    counts = np.full(length // 2 + 1, 2, g.dtype.numpy)
    counts[0] = 1
    if length % 2 == 0:
        counts[-1] = 1
    times = g.graph.constant(counts)
    return [part * times.broadcast(part.shape, (axis,)) for part in spectrum.parts()]


ROWS = (Derivative("fourier", _fourier, "the transform of g in the other direction"),)
