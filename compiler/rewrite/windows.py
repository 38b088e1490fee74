"""Turns weighted sums of an image's windows into convolutions.

    sum(windows(x)[n, c, y, x, ky, kx] * w[o, c, ky, kx], over c, ky, kx) -> conv(x, w)

`windows_of` reads which axis of the image each dim of a strided view walks along, and by what step. An axis that two
dims walk along has windows: the one that is kept counts pixels (its step is the stride), the one that is summed counts
taps (its step is the dilation). A dim that both factors keep is a group; others that are kept belong to the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.ir.op import Shape
from kernels_hub.compiler.ir.proofs import proves_equal, proves_le
from kernels_hub.compiler.rewrite.pattern import Any, Op, Scalar
from kernels_hub.compiler.rewrite.rule import Match, Rule

MOST_SPATIAL = 3


@dataclass(frozen=True)
class Windows:
    """image: what is walked over; walks: for each dim of the view the axis of the image, and the step."""

    image: Value
    walks: tuple[tuple[int, int], ...]


def windows_of(value: Value) -> Windows | None:
    """A value as windows of an image; None where it is no strided view, or one that walks along two axes at once."""
    if value.op_name != "strided":
        return None
    image = value
    walks = [(axis, 1) for axis in range(value.rank)]
    while image.op_name == "strided":
        inner = _walks(image)
        if inner is None:
            return None
        walks = [(inner[axis][0], inner[axis][1] * step) for axis, step in walks]
        image = image.operands[0]
    return Windows(image, tuple(walks))


def _walks(view: Value) -> list[tuple[int, int]] | None:
    image, attrs = view.operands[0], view.attrs
    if not proves_equal(attrs["offset"], 0):
        return None
    walks = []
    for stride in attrs["strides"]:
        walk = _walk(stride, image.shape)
        if walk is None:
            return None
        walks.append(walk)
    for axis, dim in enumerate(image.shape):
        last: Dim = 0
        for (along, step), size in zip(walks, view.shape, strict=True):
            if along == axis:
                last = last + (size - 1) * step
        if not proves_le(last, dim - 1):
            return None
    return walks


def _walk(stride: Dim, shape: Shape) -> tuple[int, int] | None:
    """The axis of the longest stride that goes into this one, and how often."""
    for axis in range(len(shape)):
        whole = product(shape[axis + 1 :])
        if isinstance(stride, int) and isinstance(whole, int):
            if 0 < whole <= stride and stride % whole == 0:
                return axis, stride // whole
            continue
        for step in range(1, 5):
            if proves_equal(whole * step, stride):
                return axis, step
    return None


@dataclass(frozen=True)
class Kinds:
    """Axes of a space of products, as `contraction` tells them apart; `axes` are those of the windows' dims."""

    axes: tuple[int, ...]
    batch: tuple[int, ...]
    depth: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Axes of the image: of the batch, the group (one at most), the channels (one at most) and the pixels; and of the
    space: pixels, taps."""

    batch: tuple[int, ...]
    group: tuple[int, ...]
    channel: tuple[int, ...]
    spatial: tuple[int, ...]
    pixels: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def plan(windows: Windows, kinds: Kinds) -> Plan | str:
    """How a contraction of windows is a convolution; or why it is none."""
    walked: dict[int, list[tuple[int, int]]] = {}
    for axis, (along, step) in zip(kinds.axes, windows.walks, strict=True):
        walked.setdefault(along, []).append((axis, step))
    kinds_of: dict[str, list[int]] = {name: [] for name in ("batch", "group", "channel")}
    spatial: list[int] = []
    windowed: list[tuple[int, int, int, int]] = []
    for along in range(windows.image.rank):
        walks = walked.get(along, [])
        if len(walks) == 2:
            (pixel, stride), (tap, dilation) = sorted(walks, key=lambda walk: walk[0] in kinds.depth)
            if pixel not in kinds.rows or tap not in kinds.depth:
                return f"of the windows along {along} no dim is summed with the weights and another kept"
            spatial.append(along)
            windowed.append((pixel, tap, stride, dilation))
            continue
        if len(walks) != 1 or walks[0][1] != 1:
            return f"{len(walks)} dims walk along axis {along} of {windows.image.type}"
        axis = walks[0][0]
        kind = "batch" if axis in kinds.rows else "group" if axis in kinds.batch else "channel"
        kinds_of[kind].append(along)
    batch, group, channel = (tuple(kinds_of[name]) for name in ("batch", "group", "channel"))
    if not 1 <= len(spatial) <= MOST_SPATIAL or len(group) > 1 or len(channel) > 1:
        return f"windows along {len(spatial)} axes, {len(group)} groups, {len(channel)} channels"
    pixels, taps, strides, dilations = (tuple(one[index] for one in windowed) for index in range(4))
    return Plan(batch, group, channel, tuple(spatial), pixels, taps, strides, dilations)


def fits(found: Plan, windows: Windows, shape: Sequence[Dim]) -> str | None:
    """None where the windows are all that the image has, as a convolution takes them."""
    for along, pixel, tap, stride, dilation in zip(
        found.spatial, found.pixels, found.taps, found.strides, found.dilations, strict=True
    ):
        count = (windows.image.shape[along] - (shape[tap] - 1) * dilation - 1) // stride + 1
        if not proves_equal(count, shape[pixel]):
            return f"{shape[pixel]} windows along axis {along} of {windows.image.type}, not all {count}"
    return None


def _padding(match: Match) -> list[tuple[Dim, Dim]]:
    return [(low, high) for low, high in match["pad"].attrs["padding"]]


def _pads_pixels(match: Match) -> str | None:
    if any(side != 0 for sides in _padding(match)[:2] for side in sides):
        return f"{_padding(match)} pads batch or channels"
    if not all(proves_le(0, side) for sides in _padding(match) for side in sides):
        return f"{_padding(match)} may cut"
    return None


def _padded(match: Match) -> Value:
    attrs = match.root.attrs
    both = [(a + c, b + d) for (a, b), (c, d) in zip(_padding(match)[2:], attrs["padding"], strict=True)]
    return match.graph.apply("conv", match["x"], match["w"], **{**attrs, "padding": both})


PADDED = (
    Rule("pad_into_conv",
         Op("conv", Op("pad", Any("x"), Scalar("v", 0.0), name="pad", mode="constant").once(), Any("w")),
         _padded, _pads_pixels, doc="conv(pad(x, 0), w) -> conv(x, w), padded"),
)  # fmt: skip
