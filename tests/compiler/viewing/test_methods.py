"""`graph.to_svg()`, `to_dot()`, `to_html()`: what `view` gives, as methods, also into files."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode

import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.viewing import view
from tests.compiler.viewing.graphs import encoder


def test_the_methods_give_what_view_gives():
    graph = encoder(2)
    after = rewrite(graph).graph
    assert graph.to_svg() == view.to_svg(graph)
    assert graph.to_svg(unfold=True, weights=False) == view.to_svg(graph, unfold=True, weights=False)
    assert graph.to_svg(unfold=True) != graph.to_svg()
    assert graph.to_dot() == view.to_dot(graph)
    assert graph.to_dot(after=after) == view.to_dot(graph, after)
    assert graph.to_html() == view.to_html(graph)
    assert graph.to_html(after=after, sizes={"batch": 8}) == view.to_html(graph, after, sizes={"batch": 8})
    with pytest.raises(DimError, match="bach"):
        graph.to_html(sizes={"bach": 8})


def test_a_notebook_shows_the_picture_as_an_image():
    graph = encoder(2, name='<b>"')
    head, _, picture = graph._repr_html_().partition("base64,")
    assert "<b>" not in head and 'alt="&lt;b&gt;&quot;"' in head
    assert b64decode(picture.partition('"')[0]).decode() == graph.to_svg(weights=False)


def test_a_notebook_names_a_graph_that_is_too_large_to_draw():
    graph = Graph("long")
    value = graph.input("x", (3,))
    for _ in range(1000):
        value = value.exp()
    graph.output("y", value)
    shown = graph._repr_html_()
    assert len(shown) < 200 and "long: 1001 nodes" in shown and "to_html" in shown


@pytest.mark.parametrize("method", ["to_svg", "to_dot", "to_html"])
def test_they_write_files(method: str, tmp_path):
    graph = encoder(1, name="ünïcødé 試験")
    text = getattr(graph, method)(tmp_path / "picture")
    assert (tmp_path / "picture").read_text(encoding="utf-8") == text == getattr(graph, method)()
    with pytest.raises(FileNotFoundError):
        getattr(graph, method)(tmp_path / "missing" / "picture")


def test_a_graph_loads_no_viewer_until_it_is_asked():
    code = """
import sys
from kernels_hub.compiler import Graph
graph = Graph(); graph.output("y", graph.input("x", (3,)))
assert not [name for name in sys.modules if name.startswith("kernels_hub.compiler.viewing.view")]
graph.to_dot()
assert "kernels_hub.compiler.viewing.dot" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
