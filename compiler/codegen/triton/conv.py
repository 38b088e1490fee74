"""Convolutions as Triton kernels: a product of windows (rows) with filters (columns) that are never laid out.

Rows are places of the result, columns its channels; the depth of the product runs over the window, its channels
fastest. Groups too narrow for a tile of their own are multiplied out, tap by tap.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import estimate, is_empty, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import KernelText, Launch
from kernels_hub.compiler.codegen.triton.options import Options, Tile
from kernels_hub.compiler.codegen.triton.product import dot, load, place, tile_of, tiled_launch, tiles
from kernels_hub.compiler.codegen.triton.text import Axis, Lines, TritonBody
from kernels_hub.compiler.ir.dims import Dim, floordiv, product
from kernels_hub.compiler.runtime.tiles import power_of_two
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Convolution, Guard, Nest

LEAST_GROUP = 16
"""Groups with fewer channels of the result, or of the source, are multiplied out."""


def print_convolution(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of a convolution."""
    if is_empty(nest.outer):
        return None
    return _Convolution(name, nest, lines, names, options).emit()


@dataclass(frozen=True)
class _Depth:
    """The loops of a product's depth, seen from one operand: taps of the window, then channels of a group."""

    taps: tuple[Loop, ...]
    channel: Loop

    @classmethod
    def of(cls, anchor: Convolution, prefix: str) -> _Depth:
        taps = tuple(Loop(f"${prefix}_tap{at}", dim) for at, dim in enumerate(anchor.w.shape[2:]))
        return cls(taps, Loop(f"${prefix}_channel", anchor.w.shape[1]))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return *self.taps, self.channel


class _Convolution:
    """One kernel."""

    def __init__(self, name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> None:
        anchor = nest.anchor
        assert isinstance(anchor, Convolution)
        self.nest, self.anchor, self.lines, self.options = nest, anchor, lines, options
        self.kernel = KernelText(name, nest, lines, names)
        self.places, self.channel = nest.outer[:-1], nest.outer[-1]
        self.rows = turns(self.places)
        out = int(anchor.w.shape[0])
        self.per_group = out // anchor.groups
        self.dense = anchor.groups == 1 or min(self.per_group, int(anchor.w.shape[1])) >= LEAST_GROUP
        self.x, self.w = _Depth.of(anchor, "x"), _Depth.of(anchor, "w")
        self.depth = product(loop.extent for loop in self.x.loops)
        axes = [
            Axis("rows", "row", "row_live"), Axis("columns", "column", "column_live"),
            Axis("x_depth", "x_depth", "x_live"), Axis("w_depth", "w_depth", "w_live"),
        ]  # fmt: skip
        axis_of = {one.name: "rows" for one in self.places} | {self.channel.name: "columns"}
        if self.dense:
            axis_of |= {loop.name: "x_depth" for loop in self.x.loops}
            axis_of |= {loop.name: "w_depth" for loop in self.w.loops}
        group = [Loop("$group", anchor.groups)] if self.dense and anchor.groups > 1 else []
        self.group = group
        loops = (*nest.outer, *self.x.loops, *self.w.loops, *group)
        self.body = TritonBody(lines, names, loops, axes, axis_of)

    def emit(self) -> Launch:
        """The whole kernel."""
        anchor, lines, body = self.anchor, self.lines, self.body
        columns = self.per_group if self.dense else self.channel.extent
        bits = anchor.x.buffer.dtype.bits
        tile = tile_of(
            (self.rows, columns, self.depth, turns(self.group)), bits, self.options, convolution=True
        )
        if not self.dense:
            across = min(64, max(16, power_of_two(estimate(columns))))
            tile = Tile({"ROWS": 64, "COLUMNS": across, "DEPTH": 16, "num_warps": 4})
        with self.kernel.define(["ROWS", "COLUMNS", "DEPTH"]):
            tiles(self.kernel, body, self.rows, columns, self.group)
            self.kernel.unravel("row", self.places, body.scalars)
            offset = f" + group * {self.per_group}" if self.group else ""
            lines.add(f"{self.channel.name[1:]} = column{offset}")
            lines.add(f"{anchor.name} = tl.zeros([ROWS, COLUMNS], tl.float32)")
            if self.dense:
                with lines.block(f"for start in range(0, {body.index(self.depth)}, DEPTH)"):
                    self._operands()
                    lines.add(
                        f"{anchor.name} = {dot('x', 'w', anchor.name, bits, self.options)}",
                        note_of(anchor.origin),
                    )
            else:
                with lines.block(f"for tap in range({body.index(self.depth)})"):
                    self._tap()
            body.know(anchor.name, anchor.dtype, ["rows", "columns"])
            for statement in self.nest.body:
                body.emit(statement)
        return tiled_launch(self.kernel, self.rows, columns, turns(self.group), tile)

    def _operands(self) -> None:
        lines, body, count = self.lines, self.body, self.body.index(self.depth)
        for operand, depth, broadcast in (("x", self.x, "[None, :]"), ("w", self.w, "[:, None]")):
            name = f"{operand}_depth"
            wide = "" if self.kernel.index == "tl.int32" else f".to({self.kernel.index})"
            lines.add(f"{name} = (start + tl.arange(0, DEPTH)){broadcast}{wide}")
            lines.add(f"{operand}_live = {name} < {count}")
            self.kernel.unravel(name, depth.loops, body.scalars)
        group = self.group[0].index if self.group else 0
        where, guards = self._window(self.x, group * int(self.anchor.w.shape[1]) + self.x.channel.index)
        axes = frozenset({"rows", "x_depth"})
        pointer = body.pointer(self.anchor.x.buffer, place(self.anchor.x, where), axes)
        lines.add(f"x = tl.load({pointer}, mask={body.mask(axes, guards)}, other=0)")
        index = (self.channel.index, self.w.channel.index, *(tap.index for tap in self.w.taps))
        lines.add(f"w = {load(body, self.anchor.w, index, frozenset({'columns', 'w_depth'}))}")

    def _tap(self) -> None:
        """One element of each window, of each group."""
        lines, body, anchor = self.lines, self.body, self.anchor
        self.kernel.unravel("tap", self.w.loops, body.scalars)
        group = floordiv(self.channel.index, self.per_group)
        where, guards = self._window(self.w, group * anchor.w.shape[1] + self.w.channel.index)
        axes = frozenset({"rows", "columns"})
        pointer = body.pointer(anchor.x.buffer, place(anchor.x, where), axes)
        lines.add(f"x = tl.load({pointer}, mask={body.mask(axes, guards)}, other=0)")
        index = (self.channel.index, self.w.channel.index, *(tap.index for tap in self.w.taps))
        lines.add(f"w = {load(body, anchor.w, index, frozenset({'columns'}))}")
        lines.add(f"{anchor.name} += x.to(tl.float32) * w.to(tl.float32)", note_of(anchor.origin))

    def _window(self, depth: _Depth, channel: Dim) -> tuple[tuple[Dim, ...], tuple[Guard, ...]]:
        """Where the source is read, and the guards of the padding."""
        anchor = self.anchor
        spatial: list[Dim] = []
        guards: list[Guard] = []
        for at, tap in enumerate(depth.taps):
            low, _ = anchor.padding[at]
            one = self.places[at + 1].index * anchor.strides[at] + tap.index * anchor.dilations[at] - low
            spatial.append(one)
            guards.append(Guard(one, 0, anchor.x.shape[at + 2]))
        return (self.places[0].index, channel, *spatial), tuple(guards)
