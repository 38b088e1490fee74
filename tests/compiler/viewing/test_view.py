"""DOT, SVG and pages: well-formed, complete, the same every time, and proof against hostile names."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_hub.compiler import Graph, parse_graph
from kernels_hub.compiler.errors import DimError
from kernels_hub.compiler.viewing.view import to_dot, to_html, to_svg
from tests.compiler.viewing.graphs import encoder, tangle
from tests.fuzz.harness import budget

HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", "]]>&lt;b>", '"><img src=x onerror=alert(1)>', 'a\\"b\\',
    "line\nbreak\ttab\x00\x1b", "\u2028\u202e\ufffe", "@DATA@@SCRIPT@", "%s{}", "ünïcødé 試験 🦆", "x" * 5000, "\\N \\G",
]  # fmt: skip

STATEMENT = re.compile(
    r"""\s*(digraph\ "(?:[^"\\]|\\.)*"\ \{ | subgraph\ ("(?:[^"\\]|\\.)*"|\w+)\ \{(\ label="(?:[^"\\]|\\.)*";)? | \}
    | (node|edge)\ \[.*\];(\ edge\ \[.*\];)? | label="(?:[^"\\]|\\.)*";\ style=rounded;\ color="[#\w]+";
    | \w+(\ ->\ \w+)?\ \[(\w+="(?:[^"\\]|\\.)*"(,\ )?)+\];)\s*""",
    re.VERBOSE,
)


def hostile(name):
    graph = Graph(name)
    with graph.origin(name):
        x = graph.input(name, ("batch", 4))
        y = graph.apply("matmul", x, graph.parameter(name + "w", (4, 4)))
    graph.output(name, y)
    return graph


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.attributes = [], [], []
        self._inside = None
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "title":
            self.title += data


def data_of(text):
    return json.loads(Page(text).scripts[0])


def check_dot(text, nodes):
    lines = text.rstrip("\n").split("\n")
    assert [line for line in lines if not STATEMENT.fullmatch(line)] == []
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert bare.count("{") == bare.count("}")
    named = re.findall(r"^\s*(\w+) \[label", text, re.MULTILINE)
    ends = {end for edge in re.findall(r"(\w+) -> (\w+)", bare) for end in edge}
    assert len(named) == len(set(named)) == nodes
    assert ends <= set(named)


def test_dot():
    graph = encoder(3)
    boxes = len(data_of(to_html(graph))["graphs"][0]["boxes"])
    text = to_dot(graph)
    check_dot(text, boxes)
    assert text.count("subgraph") == 3
    check_dot(to_dot(graph, graph), 2 * boxes)
    with pytest.raises(AssertionError):
        check_dot(text.replace("[label", "(label", 1), boxes)


def test_svg():
    root = ET.fromstring(to_svg(encoder(3)))
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "encoder.layer.0" in texts and "encoder.layer.2" in texts and "input" not in texts
    assert texts.count("softmax") == 1
    unfolded = ET.fromstring(to_svg(encoder(3), unfold=True))
    texts = ["".join(one.itertext()) for one in unfolded.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("softmax") == 3
    assert any(one.startswith("◆ encoder.layer.1") for one in texts)
    assert "◆" not in to_svg(encoder(3), weights=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name):
    graph = hostile(name)
    plain = hostile("plain")
    page, expected = Page(to_html(graph)), Page(to_html(plain))
    assert page.elements == expected.elements
    assert [k for k, _ in page.attributes] == [k for k, _ in expected.attributes]
    assert page.scripts[1:] == expected.scripts[1:]
    found = data_of(to_html(graph))["graphs"][0]
    assert found["name"] == (name if len(name) < 300 else name[:299] + "…")
    root = ET.fromstring(to_svg(graph))
    assert len(list(root.iter())) == len(list(ET.fromstring(to_svg(plain)).iter()))
    check_dot(to_dot(graph), 3)


def test_the_page_holds_everything_and_loads_nothing():
    text = to_html(encoder(2))
    page = Page(text)
    assert not {name for name, _ in page.attributes} & {"src", "href", "style", "onload", "onclick"}
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert "innerHTML" not in text and "eval(" not in text


def test_before_and_after():
    before, after = encoder(2, name="before"), encoder(1, name="after")
    graphs = data_of(to_html(before, after))["graphs"]
    assert [graph["name"] for graph in graphs] == ["before", "after"]
    assert graphs[0]["counts"]["softmax"] == 2 and graphs[1]["counts"]["softmax"] == 1


def test_sizes():
    found = data_of(to_html(encoder(1), sizes={"batch": 2, "seq": 16}))["graphs"][0]
    assert found["sizes"] == {"batch": 2, "seq": 16}
    assert found["total"][0] > 16 * data_of(to_html(encoder(1)))["graphs"][0]["total"][0]
    with pytest.raises(DimError, match="no symbol 'sek'"):
        to_html(encoder(1), encoder(1), sizes={"sek": 2})


@given(st.integers(0, 10**6), st.integers(4, 90))
@settings(max_examples=budget(5, 12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_graphs(seed, nodes):
    graph = tangle(seed, nodes)
    again = parse_graph(str(graph))
    for render in (to_dot, to_svg, to_html):
        assert render(graph) == render(graph) == render(again)
    ET.fromstring(to_svg(graph))
    found = data_of(to_html(graph))["graphs"][0]
    live = sum(found["counts"].values())
    weights = sum(found["counts"].get(op, 0) for op in ("parameter", "constant"))
    assert live == len(graph.live())
    check_dot(to_dot(graph), live - weights + len(graph.outputs))


@pytest.mark.parametrize("build", ["empty", "no outputs", "only weights", "a weight is an output"])
def test_small_graphs(build):
    graph = Graph(build)
    if build == "no outputs":
        graph.input("x", ()) + graph.constant(1.0)
    elif build == "only weights":
        graph.parameter("w", (2,))
    elif build == "a weight is an output":
        graph.output("y", graph.parameter("w", (2, 3)).permute(1, 0))
    for render in (to_dot, to_svg, to_html):
        assert render(graph)
    titles = data_of(to_html(graph))["graphs"][0]
    rows = sum(len(box[5]) for box in titles["boxes"])
    assert (len(titles["boxes"]), rows) == {
        "empty": (0, 0), "no outputs": (2, 1), "only weights": (1, 0), "a weight is an output": (1, 1),
    }[build]  # fmt: skip
