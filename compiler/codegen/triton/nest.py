"""Nests without an anchor as Triton kernels: pointwise ones here, others in `reduce` and `scan`.

A pointwise nest is a block of consecutive positions of its merged loops for each program.
"""

from __future__ import annotations

from kernels_hub.compiler.codegen.loops import is_empty, simplified, turns
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.triton.kernel import HOST, KernelText, Launch
from kernels_hub.compiler.codegen.triton.options import Options, Tile, chosen
from kernels_hub.compiler.codegen.triton.reduce import print_reduction
from kernels_hub.compiler.codegen.triton.scan import print_scan
from kernels_hub.compiler.codegen.triton.text import Axis, Lines, TritonBody
from kernels_hub.compiler.runtime.tiles import block_tile
from kernels_hub.compiler.schedule.kernel import Nest


def print_nest(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch | None:
    """Write the kernel of a nest without an anchor; None where there is nothing to do."""
    if not nest.accumulates:
        nest = Nest((*nest.outer, *nest.inner), (), nest.body)
    nest = simplified(nest)
    if is_empty(nest.outer):
        return None
    if nest.reduces:
        return print_reduction(name, nest, lines, names, options)
    if nest.scans:
        return print_scan(name, nest, lines, names, options)
    return print_pointwise(name, nest, lines, names, options)


def print_pointwise(name: str, nest: Nest, lines: Lines, names: Names, options: Options) -> Launch:
    """One program for each block of positions."""
    loops = nest.outer
    kernel = KernelText(name, nest, lines, names)
    total = turns(loops)
    axis = Axis("block", "at", "live")
    body = TritonBody(lines, names, loops, [axis], {loop.name: "block" for loop in loops})
    with kernel.define(["BLOCK"] if loops else []):
        if loops:
            lines.add(f"at = {kernel.program()} * BLOCK + tl.arange(0, BLOCK)")
            lines.add(f"live = at < {body.index(total)}")
            kernel.unravel("at", loops, body.scalars)
        for statement in nest.body:
            body.emit(statement)
    if not loops:
        return kernel.launch("", ["1"], Tile({"num_warps": 1}))
    count = HOST.index(total)
    tile = chosen(block_tile, (total,), (count,), options.block_size, late=options.late)
    condition = "" if isinstance(total, int) else f"{count} > 0"
    return kernel.launch(condition, [f"kh.cdiv({count}, {tile.of('BLOCK')})"], tile)
