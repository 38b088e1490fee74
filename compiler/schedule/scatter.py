"""Scatters as loops: a nest over the updates, which writes each where the indices say.

    scatter_elements, axis 1 of 3:  for i, k:  for j in order:  y[i, indices[i, j, k], k]   meets  updates[i, j, k]
    scatter_nd, indices (n, 2):     for k:     for n in order:  y[indices[n, 0], indices[n, 1], k]  meets  updates[n, k]

Only updates that differ in the places of the inner loops meet: the outer loops run in parallel, and results do not
depend on the number of threads. What the updates are made of is computed inside, and is not stored.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.schedule.index import Loop, Ranges
from kernels_hub.compiler.schedule.kernel import Buffer, Nest, Statement, Store, Update, arguments
from kernels_hub.compiler.schedule.lower import Body


def updates(value: Value, number: int, buffer_of: Callable[[Value], Buffer | None]) -> Nest:
    """The nest that writes the updates of a scatter over what its memory has. number: of the fusion group."""
    x, indices, given = value.operands
    loops = tuple(Loop(f"$u{number}_{axis}", dim) for axis, dim in enumerate(given.shape))
    index = tuple(loop.index for loop in loops)
    body = Body(Ranges(loops), buffer_of)
    what = value.node.origin or value.op_name
    place: tuple[Dim, ...]
    if value.op_name == "scatter_elements":
        axis = value.attrs["axis"]
        inner: tuple[int, ...] = (axis,)
        place = (*index[:axis], body.bound(indices, index, x.shape[axis], what), *index[axis + 1 :])
    else:
        lead, depth = indices.rank - 1, indices.shape[-1]
        assert isinstance(depth, int)
        inner = tuple(range(lead))
        found = [body.bound(indices, (*index[:lead], one), x.shape[one], what) for one in range(depth)]
        place = (*found, *index[lead:])
    buffer = buffer_of(value)
    assert buffer is not None
    update = Update(buffer, buffer.place(place), body.at(given, index), value.attrs["reduction"])
    return Nest(
        tuple(loop for axis, loop in enumerate(loops) if axis not in inner),
        tuple(loops[axis] for axis in inner),
        needed(body.statements, [update]),
    )


def needed(statements: list[Statement], stores: list[Store]) -> tuple[Statement, ...]:
    """The statements that the stores take, in order, and the stores."""
    wanted = {name for store in stores for name in arguments(store)}
    kept: list[Statement] = []
    for statement in reversed(statements):
        if statement.name in wanted:  # type: ignore[union-attr]
            kept.append(statement)
            wanted.update(arguments(statement))
    return (*reversed(kept), *stores)
