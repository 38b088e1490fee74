"""Repeated blocks are found, cut between layers, named, and drawn alike."""

from __future__ import annotations

import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.viewing.blocks import build_tree
from kernels_hub.compiler.viewing.drawing import draw
from kernels_hub.compiler.viewing.repeats import Run, find_runs
from kernels_hub.compiler.viewing.scene import compose, default_open
from tests.compiler.viewing.graphs import encoder, tangle


def chain(labels):
    return labels, [[k - 1] if k else [] for k in range(len(labels))]


def test_a_repetition_is_found():
    assert find_runs(*chain([9, 8, *[1, 2, 3, 4, 5, 6] * 5, 7, 9])) == [Run(2, 6, 5)]


def test_two_repetitions_are_found():
    assert find_runs(*chain([*[1, 2, 3, 4] * 4, 0, *[5, 6, 7] * 4])) == [Run(0, 4, 4), Run(17, 3, 4)]


def test_nothing_repeats():
    assert find_runs(*chain(list(range(50)))) == []
    assert find_runs([], []) == []


def test_blocks_are_cut_where_the_fewest_edges_are():
    # 1 is read by 2 and by 4, so a cut between 1 and 4 cuts two edges; before 1 it cuts one.
    labels = [4, *[1, 2, 3, 4] * 4, 1, 2]
    links = [[k - 1] if k else [] for k in range(len(labels))]
    for k, label in enumerate(labels):
        if label == 4 and k >= 3:
            links[k] = [k - 1, k - 3]
    assert find_runs(labels, links) == [Run(1, 4, 4)]


def test_blocks_with_other_edges_inside_are_not_the_same():
    labels, links = chain([1, 2, 3, 4, 5, 6] * 6)
    links[13] = []
    runs = find_runs(labels, links)
    assert all(not (run.start <= 13 < run.stop) or run.count < 6 for run in runs)


@pytest.mark.parametrize("layers", [2, 12])
def test_layers_fold(layers):
    drawing = draw(encoder(layers))
    tree = build_tree(drawing)
    top = [block for block in tree.blocks if block.parent == 0]
    assert [block.label for block in top] == [f"encoder.layer.{k}" for k in range(layers)]
    assert {(len(block.inputs), len(block.outputs), block.layout) for block in top} == {(2, 1, top[0].layout)}
    for number, block in enumerate(tree.blocks):
        for item in block.items:
            if item >= 0 and block.parent == 0:
                assert drawing.boxes[item].origin.startswith(block.label) or not drawing.boxes[item].origin
                assert tree.homes[item] == number


@pytest.mark.parametrize(
    "graph", [encoder(3), tangle(0, 200), tangle(1, 60), Graph("empty")], ids=lambda g: g.name
)
def test_everything_is_somewhere_once(graph):
    drawing = draw(graph)
    tree = build_tree(drawing)
    items = sorted(item for block in tree.blocks for item in block.items)
    assert items == [*range(-len(tree.blocks), -1), *range(len(drawing.boxes))]
    scene = compose(drawing, tree, set(range(len(tree.blocks))))
    assert sorted(place.item for place in scene.places) == items
    boxes = {place.item: place for place in scene.places}
    for number, block in enumerate(tree.blocks):
        for a in block.items:
            for b in block.items:
                assert a == b or not overlap(boxes[a], boxes[b])
            if number:
                assert within(boxes[a], boxes[~number])


@pytest.mark.parametrize("opened", ["none", "default", "all"])
def test_lines_go_from_maker_to_reader(opened):
    drawing = draw(encoder(4))
    tree = build_tree(drawing)
    show = {"none": {0}, "default": default_open(tree), "all": set(range(len(tree.blocks)))}[opened]
    scene = compose(drawing, tree, show)
    starts = {(round(place.x + place.width / 2), round(place.y + place.height)) for place in scene.places}
    ends = {(round(line.x2), round(line.bottom)) for line in scene.lines} | {
        (round(line.x2), round(line.y2)) for line in scene.lines
    }
    assert all((round(line.x1), round(line.y1)) in starts | ends for line in scene.lines)
    tops = {(round(place.x + place.width / 2), round(place.y)) for place in scene.places}
    edges_into = {(round(line.x2), round(line.y2)) for line in scene.lines}
    for place in scene.places:
        if place.item >= 0 and drawing.boxes[place.item].inputs:
            assert (round(place.x + place.width / 2), round(place.y)) in edges_into
    assert tops


def overlap(a, b):
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def within(inner, outer):
    return (
        outer.x - 0.5 <= inner.x and inner.x + inner.width <= outer.x + outer.width + 0.5
        and outer.y <= inner.y and inner.y + inner.height <= outer.y + outer.height + 0.5
    )  # fmt: skip
