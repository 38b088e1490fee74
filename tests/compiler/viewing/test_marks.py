"""Marked nodes: in every form of a picture, by value in code and by name on the command line."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from kernels_hub.cli.view import view
from kernels_hub.compiler import Graph, print_graph
from kernels_hub.compiler.errors import GraphError
from kernels_hub.compiler.ir.graph import Value
from kernels_hub.compiler.viewing.palette import DARK, LIGHT
from tests.compiler.viewing.graphs import encoder

APP = typer.Typer()
APP.command()(view)


def doubled(name: str = "double") -> tuple[Graph, Value]:
    graph = Graph(name)
    value = graph.input("x", ("n", 4)) * 2.0
    graph.output("y", value.exp())
    return graph, value


@pytest.mark.parametrize("form", ["to_svg", "to_dot", "to_html"])
def test_a_mark_is_a_star_and_a_colour(form: str):
    graph, value = doubled()
    plain = getattr(graph, form)()
    noted, bare = (getattr(graph, form)(marks={value: note}) for note in ("<slow>", ""))
    assert "★" not in plain
    assert "★ mul" in bare
    assert "★ mul: <slow>" not in noted or form == "to_dot"  # no markup in SVG and HTML
    assert "slow" in noted
    assert getattr(graph, form)(marks={}) == plain
    if form == "to_svg":
        assert plain.count('<rect class="marked"') == 0
        assert noted.count('<rect class="marked"') == 1
        assert "★ mul: &lt;slow&gt;" in noted
    if form == "to_dot":
        assert LIGHT["marked"] in noted
        assert LIGHT["marked"] not in plain


def test_of_two_graphs_each_gets_its_own():
    (before, first), (after, second) = doubled("before"), doubled("after")
    page = before.to_html(after=after, marks={first: "one", second: "two"})
    assert "★ mul: one" in page and "★ mul: two" in page
    dot = before.to_dot(after=after, marks={second: "two"})
    assert dot.count("★") == 1


def test_what_has_no_box_is_refused():
    graph, value = doubled()
    _, foreign = doubled("other")
    constant = next(one for one in graph.values if one.op_name == "constant")
    for form in (graph.to_svg, graph.to_dot, graph.to_html):
        for wrong in (foreign, constant):
            with pytest.raises(GraphError, match="cannot be marked"):
                form(marks={value: "", wrong: ""})


def test_the_colours_are_for_light_and_dark():
    assert LIGHT.keys() == DARK.keys()
    assert list(LIGHT.values()).count(LIGHT["marked"]) == 1


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize("suffix", [".svg", ".dot", ".html"])
def test_the_command(tmp_path, suffix: str):
    graph = encoder(2)
    source, target = tmp_path / "encoder.txt", tmp_path / f"encoder{suffix}"
    source.write_text(print_graph(graph, data=True))
    matmul = next(node for node in graph.live() if node.op.name == "matmul")
    for mark, *options in (("matmul=busy", "--optimized"), (f"%{matmul.results[0].id}=busy",)):
        code, output = run(source, "-o", target, *options, "--mark", mark)
        assert code == 0, output
        assert "★ matmul: busy" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("mark", ["nothing", "=note", "%999999"])
def test_a_mark_of_nothing_is_refused(tmp_path, mark: str):
    graph, _ = doubled()
    (tmp_path / "graph.txt").write_text(print_graph(graph, data=True))
    code, output = run(tmp_path / "graph.txt", "-o", tmp_path / "graph.svg", "--mark", mark)
    assert code == 2
    assert "is no value, op or name of the graph" in re.sub(r"[\s│]+", " ", output)
    assert not (tmp_path / "graph.svg").exists()
