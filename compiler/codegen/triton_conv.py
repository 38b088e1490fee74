"""Convolutions as Triton kernels: a product of windows (rows) with filters (columns) that are never laid out.

Rows are places of the result, columns its channels; the depth of the product runs over the window, its channels
fastest. Groups too narrow for a tile of their own are multiplied out, tap by tap.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_hub.compiler.codegen.cpp_loops import estimate, is_empty, turns
from kernels_hub.compiler.codegen.cpp_text import Names
from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.triton_kernel import KernelText, Launch
from kernels_hub.compiler.codegen.triton_options import Options, Tile, power_of_two
from kernels_hub.compiler.codegen.triton_product import dot, load, place, tile_of, tiled_launch, tiles
from kernels_hub.compiler.codegen.triton_text import Axis, Body, Lines
from kernels_hub.compiler.ir.dims import Dim, floordiv, product
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
    def of(cls, root: Convolution, prefix: str) -> _Depth:
        taps = tuple(Loop(f"${prefix}_tap{at}", dim) for at, dim in enumerate(root.w.shape[2:]))
        return cls(taps, Loop(f"${prefix}_channel", root.w.shape[1]))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return *self.taps, self.channel


class _Convolution:
    """One kernel."""

    def __init__(self, name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> None:
        root = nest.root
        assert isinstance(root, Convolution)
        self.nest, self.root, self.lines, self.options = nest, root, lines, options
        self.kernel = KernelText(name, nest, lines, names)
        self.places, self.channel = nest.outer[:-1], nest.outer[-1]
        self.rows = turns(self.places)
        out = int(root.w.shape[0])
        self.per_group = out // root.groups
        self.dense = root.groups == 1 or min(self.per_group, int(root.w.shape[1])) >= LEAST_GROUP
        self.x, self.w = _Depth.of(root, "x"), _Depth.of(root, "w")
        self.depth = product(one.extent for one in self.x.loops)
        axes = [
            Axis("rows", "row", "row_live"), Axis("columns", "column", "column_live"),
            Axis("x_depth", "x_depth", "x_live"), Axis("w_depth", "w_depth", "w_live"),
        ]  # fmt: skip
        axis_of = {one.name: "rows" for one in self.places} | {self.channel.name: "columns"}
        if self.dense:
            axis_of |= {one.name: "x_depth" for one in self.x.loops}
            axis_of |= {one.name: "w_depth" for one in self.w.loops}
        group = [Loop("$group", root.groups)] if self.dense and root.groups > 1 else []
        self.group = group
        loops = (*nest.outer, *self.x.loops, *self.w.loops, *group)
        self.body = Body(lines, names, loops, axes, axis_of)

    def emit(self) -> Launch:
        """The whole kernel."""
        root, lines, body = self.root, self.lines, self.body
        columns = self.per_group if self.dense else self.channel.extent
        bits = root.x.buffer.dtype.bits
        tile = tile_of((self.rows, columns, self.depth, turns(self.group)), bits, self.options)
        if not self.dense:
            across = min(64, max(16, power_of_two(estimate(columns))))
            tile = Tile({"ROWS": 64, "COLUMNS": across, "DEPTH": 16, "num_warps": 4})
        with self.kernel.define(["ROWS", "COLUMNS", "DEPTH"]):
            tiles(self.kernel, body, self.rows, columns, self.group)
            self.kernel.unravel("row", self.places, body.scalars)
            offset = f" + group * {self.per_group}" if self.group else ""
            lines.add(f"{self.channel.name[1:]} = column{offset}")
            lines.add(f"{root.name} = tl.zeros([ROWS, COLUMNS], tl.float32)")
            if self.dense:
                with lines.block(f"for start in range(0, {body.index(self.depth)}, DEPTH)"):
                    self._operands()
                    lines.add(
                        f"{root.name} = {dot('x', 'w', root.name, bits, self.options)}", note_of(root.origin)
                    )
            else:
                with lines.block(f"for tap in range({body.index(self.depth)})"):
                    self._tap()
            body.know(root.name, root.dtype, ["rows", "columns"])
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
        where, guards = self._window(self.x, group * int(self.root.w.shape[1]) + self.x.channel.index)
        axes = frozenset({"rows", "x_depth"})
        pointer = body.pointer(self.root.x.buffer, place(self.root.x, where), axes)
        lines.add(f"x = tl.load({pointer}, mask={body.mask(axes, guards)}, other=0)")
        index = (self.channel.index, self.w.channel.index, *(one.index for one in self.w.taps))
        lines.add(f"w = {load(body, self.root.w, index, frozenset({'columns', 'w_depth'}))}")

    def _tap(self) -> None:
        """One element of each window, of each group."""
        lines, body, root = self.lines, self.body, self.root
        self.kernel.unravel("tap", self.w.loops, body.scalars)
        group = floordiv(self.channel.index, self.per_group)
        where, guards = self._window(self.w, group * root.w.shape[1] + self.w.channel.index)
        axes = frozenset({"rows", "columns"})
        pointer = body.pointer(root.x.buffer, place(root.x, where), axes)
        lines.add(f"x = tl.load({pointer}, mask={body.mask(axes, guards)}, other=0)")
        index = (self.channel.index, self.w.channel.index, *(one.index for one in self.w.taps))
        lines.add(f"w = {load(body, root.w, index, frozenset({'columns'}))}")
        lines.add(f"{root.name} += x.to(tl.float32) * w.to(tl.float32)", note_of(root.origin))

    def _window(self, depth: _Depth, channel: Dim) -> tuple[tuple[Dim, ...], tuple[Guard, ...]]:
        """Where the source is read, and the guards of the padding."""
        root = self.root
        spatial: list[Dim] = []
        guards: list[Guard] = []
        for at, tap in enumerate(depth.taps):
            low, _ = root.padding[at]
            one = self.places[at + 1].index * root.strides[at] + tap.index * root.dilations[at] - low
            spatial.append(one)
            guards.append(Guard(one, 0, root.x.shape[at + 2]))
        return (self.places[0].index, channel, *spatial), tuple(guards)
