"""Matrix products as Triton kernels: a tile of the result for each program, by tensor cores, with its epilogue.

Tiles are taken in groups of rows, so that programs which run together read the same columns; batches come one after
the other. Where one operand is the same for a whole batch and the other runs on, the batch is more rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels_hub.compiler.codegen.lines import note_of
from kernels_hub.compiler.codegen.loops import is_empty, merged, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, KernelText, Launch
from kernels_hub.compiler.codegen.triton.options import Options, Tile, chosen
from kernels_hub.compiler.codegen.triton.text import Axis, Lines, TritonBody
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.runtime.tiles import conv_tile, product_tile
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Nest, Product, View

GROUP = 8
"""Rows of tiles that are taken together."""


def print_product(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of a product."""
    if is_empty(nest.outer):
        return None
    nest = batches_as_rows(nest)
    anchor = nest.anchor
    assert isinstance(anchor, Product)
    *batch, rows, columns = nest.outer
    depth = anchor.a.shape[-1]
    bits = anchor.a.buffer.dtype.bits
    tile = tile_of((rows.extent, columns.extent, depth, turns(batch)), bits, options)
    kernel = KernelText(name, nest, lines, names)
    axes = [
        Axis("rows", "row", "row_live"), Axis("columns", "column", "column_live"),
        Axis("a_depth", "a_depth", "a_live"), Axis("b_depth", "b_depth", "b_live"),
    ]  # fmt: skip
    a_depth, b_depth = Loop("$a_depth", depth), Loop("$b_depth", depth)
    axis_of = {
        rows.name: "rows", columns.name: "columns", a_depth.name: "a_depth", b_depth.name: "b_depth",
    }  # fmt: skip
    body = TritonBody(lines, names, (*nest.outer, a_depth, b_depth), axes, axis_of)
    outer = tuple(one.index for one in batch)
    with kernel.define(["ROWS", "COLUMNS", "DEPTH"]):
        tiles(kernel, body, rows.extent, columns.extent, batch)
        lines.add(f"{rows.name[1:]} = row")
        lines.add(f"{columns.name[1:]} = column")
        lines.add(f"{anchor.name} = tl.zeros([ROWS, COLUMNS], tl.float32)")
        with lines.block(f"for start in range(0, {body.index(depth)}, DEPTH)"):
            for operand, view, where, kept, axis in (
                ("a", anchor.a, "[None, :]", "rows", a_depth),
                ("b", anchor.b, "[:, None]", "columns", b_depth),
            ):
                one = axis.name[1:]
                lines.add(f"{one} = (start + tl.arange(0, DEPTH)){where}{_wide(kernel)}")
                lines.add(f"{operand}_live = {one} < {body.index(depth)}")
                index = (rows.index, axis.index) if operand == "a" else (axis.index, columns.index)
                lines.add(f"{operand} = {load(body, view, (*outer, *index), frozenset({kept, one}))}")
            lines.add(f"{anchor.name} = {dot('a', 'b', anchor.name, bits, options)}", note_of(anchor.origin))
        body.know(anchor.name, anchor.dtype, ["rows", "columns"])
        for statement in nest.body:
            body.emit(statement)
    return tiled_launch(kernel, rows.extent, columns.extent, turns(batch), tile)


def dot(a: str, b: str, total: str, bits: int, options: Options) -> str:
    """total + a @ b."""
    precision = ', "tf32"' if options.tf32 and bits == 32 else ""
    return f"kh.dot({a}, {b}, {total}{precision})"


def place(view: View, index: tuple[Dim, ...]) -> Dim:
    """Where an element of a view lies in its buffer."""
    total = view.offset
    for dim, stride in zip(index, view.strides, strict=True):
        total = total + dim * stride
    return total


def load(body: TritonBody, view: View, index: tuple[Dim, ...], axes: frozenset[str]) -> str:
    """A tile of a view, 0 where there is no element, in the dtype that it has in memory."""
    pointer = body.pointer(view.buffer, place(view, index), axes)
    return f"tl.load({pointer}, mask={body.mask(axes)}, other=0)"


def tiles(kernel: KernelText, body: TritonBody, rows: Dim, columns: Dim, batch: list[Loop]) -> None:
    """`row` [ROWS, 1] and `column` [1, COLUMNS] of this program, and the variables of the batch."""
    lines = kernel.lines
    lines.add(f"program = {kernel.program()}")
    lines.add(f"down = tl.cdiv({body.index(rows)}, ROWS)")
    lines.add(f"across = tl.cdiv({body.index(columns)}, COLUMNS)")
    if batch:
        lines.add("batch = program // (down * across)")
        lines.add("program = program % (down * across)")
        kernel.unravel("batch", batch, body.scalars)
    lines.add(f"first = program // ({GROUP} * across) * {GROUP}")
    lines.add(f"together = tl.minimum(down - first, {GROUP})")
    lines.add(f"within = program % ({GROUP} * across)")
    lines.add("row = ((first + within % together) * ROWS + tl.arange(0, ROWS))[:, None]")
    lines.add("column = (within // together * COLUMNS + tl.arange(0, COLUMNS))[None, :]")
    lines.add(f"row_live = row < {body.index(rows)}")
    lines.add(f"column_live = column < {body.index(columns)}")


def tile_of(sizes: tuple[Dim, ...], bits: int, options: Options, *, convolution: bool = False) -> Tile:
    """The tile of a product, or of a convolution, of these rows, columns, depth and batches."""
    exact = bits == 32 and not options.tf32
    texts = tuple(HOST.index(size) for size in sizes)
    function = conv_tile if convolution else product_tile
    return chosen(
        function, sizes, texts, 33 if exact else bits, options.stages, options.tile, late=options.late
    )


def tiled_launch(kernel: KernelText, rows: Dim, columns: Dim, batch: Dim, tile: Tile) -> Launch:
    """One program a tile."""
    down, across = (
        f"kh.cdiv({HOST.index(one)}, {tile.of(name)})" for one, name in ((rows, "ROWS"), (columns, "COLUMNS"))
    )
    grid = f"{down} * {across}"
    if batch != 1:
        grid += f" * {HOST.factor(batch)}"
    tests = [f"{HOST.factor(one)} > 0" for one in (rows, columns, batch) if not isinstance(one, int)]
    return kernel.launch(" and ".join(tests), [grid], tile)


@dataclass(frozen=True)
class _Flat:
    """A view without the last dim of its batch."""

    view: View
    batch: int

    def merged(self) -> View:
        """The rows of the batch as more rows."""
        at, view = self.batch, self.view
        extent = view.shape[at] * view.shape[at + 1]
        shape = (*view.shape[:at], extent, *view.shape[at + 2 :])
        return replace(view, shape=shape, strides=(*view.strides[:at], *view.strides[at + 1 :]))

    def dropped(self) -> View:
        """Without it."""
        at, view = self.batch, self.view
        return replace(
            view,
            shape=(*view.shape[:at], *view.shape[at + 1 :]),
            strides=(*view.strides[:at], *view.strides[at + 1 :]),
        )


def batches_as_rows(nest: Nest) -> Nest:
    """A product whose batches are rows where the right operand is the same for all of them."""
    anchor = nest.anchor
    assert isinstance(anchor, Product)
    while len(nest.outer) > 2:
        *batch, last, rows, columns = nest.outer
        at = len(batch)
        single = isinstance(last.extent, int) and last.extent == 1
        runs_on = anchor.a.strides[at] == anchor.a.strides[at + 1] * rows.extent or single
        if not runs_on or not (single or anchor.b.strides[at] == 0):
            return nest
        loops, body = merged((last, rows), nest.body)
        if len(loops) != 1:
            return nest
        anchor = replace(anchor, a=_Flat(anchor.a, at).merged(), b=_Flat(anchor.b, at).dropped())
        nest = replace(nest, outer=(*batch, loops[0], columns), body=body, anchor=anchor)
    return nest


def _wide(kernel: KernelText) -> str:
    return "" if kernel.index == "tl.int32" else f".to({kernel.index})"
