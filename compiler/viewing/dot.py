"""A drawing in Graphviz's language: blocks are clusters."""

from __future__ import annotations

from kernels_hub.compiler.viewing.blocks import Tree
from kernels_hub.compiler.viewing.drawing import Box, Drawing
from kernels_hub.compiler.viewing.palette import LIGHT


def render_dot(drawing: Drawing, tree: Tree, prefix: str = "") -> list[str]:
    """Statements for the inside of a digraph. prefix: of all names, so that two drawings fit in one."""
    lines = _block(drawing, tree, 0, prefix, "  ")
    for number, box in enumerate(drawing.boxes):
        for value in box.inputs:
            made = drawing.made_by[value]
            types = drawing.boxes[made].types
            of = types[drawing.boxes[made].outputs.index(value)]
            lines.append(f"  {prefix}n{made} -> {prefix}n{number} [tooltip={quote(of)}];")
    return lines


def quote(text: str) -> str:
    """A double-quoted string that Graphviz shows as it is."""
    text = "".join(one if one.isprintable() else "\ufffd" for one in text)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _block(drawing: Drawing, tree: Tree, number: int, prefix: str, indent: str) -> list[str]:
    lines = []
    for item in tree.blocks[number].items:
        if item >= 0:
            lines.append(f"{indent}{prefix}n{item} {_box(drawing.boxes[item])};")
        else:
            block = tree.blocks[~item]
            title = f"{block.label} ({block.place + 1} of {block.count})"
            lines.append(f"{indent}subgraph {quote(f'cluster_{prefix}{~item}')} {{")
            lines.append(f'{indent}  label={quote(title)}; style=rounded; color="#b5afa2";')
            lines += _block(drawing, tree, ~item, prefix, indent + "  ")
            lines.append(f"{indent}}}")
    return lines


def _box(box: Box) -> str:
    texts = [box.title, *box.types, *(f"{row.label} · {row.type}" for row in box.rows)]
    label = "\\n".join(quote(text)[1:-1] for text in texts)
    return f'[label="{label}", color="{LIGHT[box.kind]}", tooltip={quote(box.origin or box.op)}]'
