"""The boxes and edges of a drawing of a graph: a box for each live node and each output.

Parameters and constants get no box: a line in the box that reads them, through whatever views and casts lie between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.cost import FREE, Cost, Costs, default_sizes
from kernels_hub.compiler.ir.graph import Graph, Node, Value
from kernels_hub.compiler.ir.op import Literal, Trait
from kernels_hub.compiler.viewing.palette import LIGHT

LONGEST_NAME = 300
"""Characters of a name or an attribute that are shown; the rest is cut."""

LONGEST_REGION = 4000

KINDS = tuple(LIGHT)
_TRAITS = (
    (Trait.REGION, "region"), (Trait.CONTRACTION, "contraction"), (Trait.REDUCTION, "reduction"),
    (Trait.INDEXING, "indexing"), (Trait.VIEW, "view"), (Trait.POINTWISE, "pointwise"), (Trait.LEAF, "constant"),
)  # fmt: skip

_BY_NAME = {
    **dict.fromkeys(
        ("softmax", "log_softmax", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin"), "reduction"
    ),
    **dict.fromkeys(("max_pool", "argmax_pool", "sum_pool", "avg_pool", "argsort", "argtopk"), "reduction"),
}


@dataclass(frozen=True, slots=True)
class OperandRow:
    """A weight or constant that a box reads. via: the views and casts between, from the weight on."""

    operand: int
    label: str
    type: str
    via: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Box:
    """A node, or an output of the graph.

    inputs: ids of the values that it reads and boxes make; outputs: of those that it makes.
    """

    op: str
    kind: str
    title: str
    types: tuple[str, ...]
    origin: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: tuple[tuple[str, str], ...]
    rows: tuple[OperandRow, ...]
    cost: Cost
    structure: tuple[Any, ...]
    """Equal for boxes that do the same on operands of the same types."""
    flows: bool
    """Whether it depends on an input of the graph."""

    @property
    def width(self) -> float:
        """Of the box, in pixels, weights shown or not."""
        lines = [7.6 * len(self.title) + 26, *(6.7 * len(name) + 22 for name in self.types)]
        lines += [6.1 * (len(row.label) + len(row.type) + 3) + 26 for row in self.rows]
        return round(min(max(*lines, 92.0), 250.0 if len(self.rows) else 236.0), 1)


@dataclass(frozen=True)
class Drawing:
    """Boxes, each after those it reads, and facts about the graph."""

    name: str
    boxes: tuple[Box, ...]
    counts: Mapping[str, int]
    """Op -> how many nodes of it live, those without a box included."""
    dead: int
    sizes: Mapping[str, int]
    total: Cost
    made_by: Mapping[int, int] = field(default_factory=dict)
    """Value id -> the box that makes it."""


def draw(
    graph: Graph, sizes: Mapping[str, int] | None = None, marks: Mapping[Value, str] | None = None
) -> Drawing:
    """What there is to see of a graph. sizes: numbers for symbols, for costs. marks: value -> a note at what makes it.

    Raises DimError for unknown symbols, GraphError for a mark of a value that has no box.
    """
    chosen = default_sizes(graph, sizes)
    costs = Costs(chosen)
    nodes = graph.live() if graph.outputs else list(graph.nodes)
    absorbed = {
        node for node in _absorbed(nodes) if node.results[0].users or graph.is_output(node.results[0])
    }
    flows: set[Node] = set()
    boxes: list[Box] = []
    made_by: dict[int, int] = {}
    counts: dict[str, int] = {}
    unknown = False
    flops = moved = 0
    for node in nodes:
        counts[_called(node)] = counts.get(_called(node), 0) + 1
        if node.op.name == "input" or any(operand.node in flows for operand in node.operands):
            flows.add(node)
        if node in absorbed:
            continue
        cost = costs.of(node)
        unknown |= cost.flops is None or cost.bytes is None
        flops, moved = flops + (cost.flops or 0), moved + (cost.bytes or 0)
        made_by.update(dict.fromkeys((value.id for value in node.results), len(boxes)))
        boxes.append(_box(node, absorbed, cost, flows=node in flows))
    for value, note in (marks or {}).items():
        if value.graph is not graph or value.id not in made_by:
            raise GraphError(f"{value} cannot be marked: graph {graph.name} has no box for it")
        place = made_by[value.id]
        boxes[place] = _marked(boxes[place], note)
    boxes += (_output(name, value, absorbed) for name, value in graph.outputs.items())
    counts = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    total = Cost(None, None) if unknown else Cost(flops, moved)
    dead = len(graph.nodes) - len(nodes)
    return Drawing(short(graph.name), tuple(boxes), counts, dead, chosen, total, made_by)


def _marked(box: Box, note: str) -> Box:
    title = f"★ {box.title}: {note}" if note else f"★ {box.title}"
    return replace(box, kind="marked", title=short(title))


def short(text: str, longest: int = LONGEST_NAME) -> str:
    """A text cut to a length, and without what is no character (lone surrogates)."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _absorbed(nodes: list[Node]) -> set[Node]:
    """Weights, constants, and views and casts of them; those that nothing reads keep their boxes."""
    found: set[Node] = set()
    for node in nodes:
        view = Trait.VIEW in node.op.traits or node.op.name == "cast"
        if node.op.name in {"parameter", "constant"} or (
            view and len(node.operands) == 1 and node.operands[0].node in found
        ):
            found.add(node)
    return found


def _called(node: Node) -> str:
    """The op's name; of a call also what it calls, which is what a recognised part of a model has become."""
    return f"call {short(node.attrs['callee'].name)}" if node.op.name == "call" else node.op.name


def _box(node: Node, absorbed: set[Node], cost: Cost, *, flows: bool) -> Box:
    title, kind = node.op.name, _BY_NAME.get(node.op.name, "")
    if title == "input":
        title, kind = short(node.attrs["name"]), "input"
    elif title == "call":
        title = short(node.attrs["callee"].name)
    kind = kind or next((kind for trait, kind in _TRAITS if trait in node.op.traits), "other")
    rows = _rows(node.operands, absorbed)
    types = tuple(str(value.type) for value in node.results)
    structure = (node.op.name, *map(_structure, node.attrs.values()))
    typed = tuple(one.type for one in (*node.results, *node.operands))
    return Box(
        _called(node), kind, title, types, short(node.origin),
        tuple(value.id for value in node.operands if value.node not in absorbed),
        tuple(value.id for value in node.results),
        tuple((name, short(*_attribute(value))) for name, value in node.attrs.items()), rows, cost,
        (*structure, *typed), flows,
    )  # fmt: skip


def _output(name: str, value: Value, absorbed: set[Node]) -> Box:
    return Box(
        "output", "output", short(name), (str(value.type),), "", () if value.node in absorbed else (value.id,), (),
        (("name", short(name)),), _rows((value,), absorbed), FREE, ("output",), flows=False,
    )  # fmt: skip


def _rows(operands: tuple[Value, ...], absorbed: set[Node]) -> tuple[OperandRow, ...]:
    rows = []
    for index, value in enumerate(operands):
        if value.node in absorbed:
            node, via = value.node, []
            while node.operands:
                via.append(node.op.name)
                node = node.operands[0].node
            label = node.attrs["name"] if node.op.name == "parameter" else _constant(node.attrs["value"])
            of = str(node.results[0].type)
            rows.append(OperandRow(index, short(label), of, tuple(reversed(via)), short(node.origin)))
    return tuple(rows)


def _constant(value: Literal) -> str:
    if value.array.size > 4:
        return f"constant {value.digest[:8]}"
    numbers = [
        f"{one:.6g}" if isinstance(one, float) else str(one) for one in value.array.reshape(-1).tolist()
    ]
    return numbers[0] if value.array.ndim == 0 else f"[{', '.join(numbers)}]"


def _structure(value: object) -> Any:
    return (value.name, len(value.nodes), value.signature()) if isinstance(value, Graph) else value


def _attribute(value: object) -> tuple[str, int]:
    if isinstance(value, Literal):
        return f"{_constant(value)} {value.array.dtype}{list(value.array.shape)}", LONGEST_NAME
    if isinstance(value, Graph):
        return str(value), LONGEST_REGION
    if isinstance(value, tuple):
        return f"[{', '.join(_attribute(one)[0] for one in value)}]", LONGEST_NAME
    return str(value), LONGEST_NAME
