"""An ONNX file and a module whose every name is hostile are compiled, published and viewed, and nothing of them runs.

What is written is parsed: Python by `ast`, C++ by its tokens, HTML, SVG, Markdown and TOML by parsers of these.
"""

from __future__ import annotations

import ast
import itertools
import json
import tomllib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

from kernels_hub import LocalLayerRepository, Mode, kernelize, report, use_kernel_mapping
from kernels_hub.compiler import import_onnx
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.viewing.view import to_dot, to_html, to_svg
from kernels_hub.kernelization.tag import replace_kernel_forward_from_hub
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.card import CardInput
from kernels_hub.repository.card import write_card as write_release_card
from kernels_hub.repository.interface import read_interface
from tests.compiler.export.emitted_layers import write_onnx
from tests.compiler.hostile_names import canaries, cpp_tokens, hostile_texts, python_tokens, without_sizes
from tests.runtime_objects import share_runtime_objects

TEXTS = [one for one in hostile_texts() if len(one) < 4096 and "\ud800" not in one]


class Renamed:
    """A different hostile text behind each name."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = itertools.cycle(texts)
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._known.setdefault(name, f"{name}{next(self._texts)}") if name else name


def hostile_onnx(path: Path, texts: list[str]) -> None:
    """The block of `write_onnx`, with other names everywhere."""
    write_onnx(path)
    model = onnx.load(path)
    named = Renamed(texts)
    graph = model.graph
    graph.name, model.producer_name, model.doc_string = named("graph"), named("by"), named("doc")
    for place, node in enumerate(graph.node):
        node.name = named(f"node{place}")
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
    for one in (*graph.input, *graph.output, *graph.initializer):
        one.name = named(one.name)
    for one in (*graph.input, *graph.output):
        for dim in one.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = named(dim.dim_param)
    onnx.save(model, path)


class Elements(HTMLParser):
    """Tags and attributes of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag, tuple(name for name, _ in attrs)] += 1
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def shape_of(source: str) -> list[str]:
    """The kinds of nodes of a Python file's tree, in order: what it does, whatever it is called."""
    return [type(node).__name__ for node in ast.walk(ast.parse(source))]


def check_repository_of_names(emitted: Emitted, benign: Emitted) -> None:
    """The files of one repository are, but for names, those of the other."""
    assert emitted.files == benign.files
    for name in emitted.files:
        mine, other = emitted.path / name, benign.path / name
        if name.endswith((".safetensors",)):
            continue
        if name.endswith(".bytecode"):  # which has no names
            assert mine.read_bytes() == other.read_bytes(), name
            continue
        text, plain = mine.read_text(encoding="utf-8"), other.read_text(encoding="utf-8")
        if name.endswith(("model.py", "layers.py")):
            assert Counter(shape_of(text)) == Counter(shape_of(plain)), name
        elif name.endswith((".cpp", ".h")):
            assert cpp_tokens(without_sizes(text)) == cpp_tokens(without_sizes(plain)), name
        elif name.endswith("kernels.py"):
            assert python_tokens(without_sizes(text)) == python_tokens(without_sizes(plain)), name
        elif name.endswith(".py"):
            assert shape_of(text) == shape_of(plain), name
        elif name.endswith(".toml"):
            found, expected = tomllib.loads(text), tomllib.loads(plain)
            assert {**found, "kernel": {**found["kernel"], "summary": ""}} == {
                **expected, "kernel": {**expected["kernel"], "summary": ""}
            }  # fmt: skip
        elif name.endswith(".svg"):
            kinds = [[one.tag for one in ElementTree.fromstring(svg).iter()] for svg in (text, plain)]
            assert kinds[0] == kinds[1], name
        elif name.endswith(".md"):
            check_markdown(text)
        elif name.endswith(".json"):
            json.loads(text)
        assert all(line.isprintable() for line in text.replace("\t", " ").split("\n")), name


def check_markdown(text: str) -> None:
    """Rendered with HTML allowed, it holds what a card is made of, and no link or image but the graph."""
    page = Elements(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    allowed = {
        "h1", "h2", "p", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "img", "br", "em",
    }  # fmt: skip
    assert {tag for tag, _ in page.tags} <= allowed, page.tags
    assert sum(count for (tag, _), count in page.tags.items() if tag == "img") <= 1
    assert {names for (tag, names) in page.tags if names} <= {("src", "alt"), ("class",)}, page.tags
    assert text.count("\n## ") == sum(count for (tag, _), count in page.tags.items() if tag == "h2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_onnx(folder / "model.onnx")
    return emit_layer(folder / "model.onnx", layer_name="Block", out=folder / "block", benchmark=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile_onnx(folder / "model.onnx", canaries())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("KERNELS_HUB_CACHE", str(share_runtime_objects(folder / "cache")))
        emitted = emit_layer(
            folder / "model.onnx", layer_name="Block", out=folder / "block", benchmark=False, interpret=True
        )
        build_repository(emitted.path, folder / "built", version="1.0.0", check=True)
        assert not (folder / "ran").exists()
    return emitted


def test_an_emitted_repository_is_that_of_plain_names(hostile, plain):
    check_repository_of_names(hostile, plain)


def test_a_built_repository_runs_and_runs_nothing_else(hostile, plain, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    built = hostile.path.parent / "built"
    interface = read_interface(built)
    card = write_release_card(interface, CardInput("org/block", "1.0.0", readme="# Block\n\nWords."))
    check_markdown(card.split("---\n", 2)[2])
    layer = LocalLayerRepository(built, layer_name="Block")
    with use_kernel_mapping({"Block": {"cpu": layer}}):
        from kernels_hub import get_local_kernel

        model = get_local_kernel(built).load()
        ids = torch.arange(6).reshape(2, 3)
        result = model(ids)
    (found,) = result.values() if isinstance(result, dict) else (result,)
    expected = get_local_kernel(plain.path).load()(ids)
    (wanted,) = expected.values() if isinstance(expected, dict) else (expected,)
    torch.testing.assert_close(found, wanted)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", range(0, len(TEXTS), 8))
def test_pages_and_pictures_hold_no_markup_of_names(tmp_path, place):
    write_onnx(tmp_path / "plain.onnx")
    hostile_onnx(tmp_path / "model.onnx", TEXTS[place : place + 8])
    graph, other = import_onnx(tmp_path / "model.onnx"), import_onnx(tmp_path / "plain.onnx")
    assert [one.tag for one in ElementTree.fromstring(to_svg(graph, unfold=True)).iter()] == [
        one.tag for one in ElementTree.fromstring(to_svg(other, unfold=True)).iter()
    ]
    page, benign = Elements(to_html(graph)), Elements(to_html(other))
    assert page.tags == benign.tags
    assert page.scripts[1:] == benign.scripts[1:] or page.scripts[:-1] == benign.scripts[:-1]
    data = [json.loads(one) for one in page.scripts if one.startswith("{")]
    assert data and data[0]["graphs"][0]["name"].startswith("graph")
    dot = to_dot(graph)
    assert len(dot.split("\n")) == len(to_dot(other).split("\n"))
    for text in (dot, print_graph(graph), to_html(graph), to_svg(graph)):
        assert all(line.isprintable() for line in text.replace("\t", " ").split("\n"))


def test_names_of_a_megabyte_are_cut(tmp_path):
    hostile_onnx(tmp_path / "model.onnx", ["x" * (1 << 20), "\n" * (1 << 20)])
    graph = import_onnx(tmp_path / "model.onnx")
    names = [graph.name, *graph.inputs, *graph.outputs, *graph.parameters, *graph.symbols]
    assert max(map(len, names)) == 256
    assert len(set(names)) == len(names)
    assert len(to_html(graph)) < 300_000


def hostile_module(texts: list[str]) -> nn.Module:
    """A module whose class, parts and weights have hostile names; paths are divided by dots, so without these."""
    names = iter(one.replace(".", "_") for one in itertools.cycle(texts))

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = f"scale{next(names)}"
            self.register_parameter(self.last, nn.Parameter(torch.full((8,), 0.5)))
            self.inner = f"linear{next(names)}"
            self.add_module(self.inner, nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(getattr(self, self.inner)(x)) * getattr(self, self.last)

    Gate.__name__, Gate.__qualname__ = (f"Gate{next(names)}" for _ in range(2))
    return Gate().eval()


def test_a_module_whose_every_name_is_hostile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = hostile_module(canaries())
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    expected = module(x)
    emitted = emit_layer(
        (module, (x,)), layer_name="Gate", out=tmp_path / "gate", benchmark=False, training=False
    )
    check_markdown((emitted.path / "README.md").read_text(encoding="utf-8"))
    for one in emitted.path.rglob("*.py"):
        ast.parse(one.read_text(encoding="utf-8"))
    build_repository(emitted.path, tmp_path / "built", version="1.0.0", check=True)
    replace_kernel_forward_from_hub(type(module), "Gate")
    model = nn.Sequential(module)
    layer = LocalLayerRepository(tmp_path / "built", layer_name="Gate")
    with use_kernel_mapping({"Gate": {"cpu": layer}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, use_fallback=False)
    torch.testing.assert_close(model(x), expected)
    shown = report(model)
    assert shown.swapped
    assert all(line.isprintable() for line in str(shown).split("\n"))
    assert len(str(shown).split("\n")) == 4
    page = Elements(shown._repr_html_())
    assert {tag for tag, _ in page.tags} == {"table", "thead", "tbody", "tr", "th", "td", "p"}
    assert not (tmp_path / "ran").exists()
    np.testing.assert_array_equal(expected.detach().numpy().shape, (3, 8))
