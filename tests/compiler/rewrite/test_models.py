"""The same models from torch and from ONNX, rewritten: one structure, every composite found, torch's numbers.

`golden/<model>.txt` is the structure that all importers must reach. To accept another one, read the difference, then

    ACCEPT_GOLDEN=1 python -m pytest tests/compiler/rewrite/test_models.py

which writes what torch's import gives; the tests of ONNX then say whether it still is the same.
"""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, evaluate, verify
from kernels_hub.compiler.importers.onnx import import_onnx
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.rewrite.rule import Options
from tests.compiler.importers.torch_programs import assert_matches
from tests.compiler.rewrite import models
from tests.compiler.rewrite.structure import kinds, structure

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's exporters and of transformers

GOLDEN = Path(__file__).parent / "golden"

COMPOSITES = {
    "bert": {"layer_norm": 7, "gelu": 3, "attention": 3},
    "llama": {"rms_norm": 7, "rotary": 6, "gated_silu": 3, "attention": 3},
    "resnet50": {"conv": 53, "matmul": 1},
    "unet_block": {"group_norm": 6, "layer_norm": 6, "silu": 5, "gated_gelu": 2, "attention": 4},
}
"""Of each model, what must be found, and how often: all that there are."""

ONE_LAYER = {
    "bert": {"layer_norm": 3, "gelu": 1, "attention": 1},
    "llama": {"rms_norm": 3, "rotary": 2, "gated_silu": 1, "attention": 1},
}

LEFT = {
    "bert": {"add", "cast", "gather", "matmul", "permute", "reshape"},
    "llama": {"add", "bitand", "broadcast", "cast", "gather", "matmul", "permute", "reshape"},
    "resnet50": {"add", "maximum", "max_pool", "reduce_mean"},
    "unet_block": {"add", "broadcast", "concat", "conv", "matmul", "permute", "reshape", "resize", "slice"},
}
"""What else may be left: nothing that a norm, an activation, an attention or a batch norm is made of."""


@functools.cache
def model(name: str, **options: Any) -> models.Model:
    torch.manual_seed(0)
    return models.randomised(getattr(models, name)(**options))


@functools.cache
def expected(name: str) -> torch.Tensor:
    given = model(name)
    with torch.no_grad():
        return given.module(*given.args)


@functools.cache
def from_torch(given: models.Model) -> Graph:
    return import_torch(given.module, given.args)


def from_exporter(given: models.Model, **options: Any) -> Graph:
    """By way of the exporter that traces with torch.export."""
    pytest.importorskip("onnxscript", reason="torch's newer ONNX exporter needs the package onnxscript")
    program = torch.onnx.export(given.module, given.args, dynamo=True, verbose=False, **options)
    return import_onnx(program.model_proto)


def from_torchscript(given: models.Model, **options: Any) -> Graph:
    """By way of the older exporter."""
    file = io.BytesIO()
    torch.onnx.export(given.module, given.args, file, dynamo=False, **options)
    return import_onnx(file.getvalue())


WAYS = {"torch": from_torch, "onnx": from_exporter, "onnx by torchscript": from_torchscript}


def outputs(graph: Graph, given: models.Model) -> np.ndarray:
    (result,) = evaluate(
        graph, {n: a.numpy() for n, a in zip(graph.inputs, given.args, strict=True)}
    ).values()
    return result


def rewritten(graph: Graph) -> Graph:
    return rewrite(graph, after=lambda _, one: verify(one)).graph


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", models.MODELS)
def test_every_importer_reaches_the_same_structure_and_torchs_numbers(name, way):
    graph = WAYS[way](model(name))
    assert_matches(outputs(graph, model(name)), expected(name))
    result = rewritten(graph)
    assert_matches(outputs(result, model(name)), expected(name))
    found = kinds(result)
    assert {one: found[one] for one in COMPOSITES[name]} == COMPOSITES[name]
    assert set(found) - set(COMPOSITES[name]) <= LEFT[name]
    file, text = GOLDEN / f"{name}.txt", structure(result)
    if os.environ.get("ACCEPT_GOLDEN") and way == "torch":
        file.write_text(text)
    assert text.splitlines() == file.read_text().splitlines()


@pytest.mark.parametrize("name", models.MODELS)
def test_without_rounding_every_bit_stays(name):
    graph = from_torch(model(name))
    result = rewrite(graph, options=Options(rounding=False)).graph
    np.testing.assert_array_equal(outputs(result, model(name)), outputs(graph, model(name)))


@pytest.mark.parametrize("way", ["torch", "onnx by torchscript"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_attention_that_is_written_out(name, way):
    given = model(name, attention="eager", layers=1)
    graph = WAYS[way](given)
    result = rewritten(graph)
    with torch.no_grad():
        assert_matches(outputs(result, given), given.module(*given.args))
    found = kinds(result)
    assert {one: found[one] for one in ONE_LAYER[name]} == ONE_LAYER[name]


@pytest.mark.parametrize("options", [{"opset_version": 23}, {"optimize": False}], ids=["newest ops", "plain"])
def test_llama_by_other_exports(options):
    given = model("llama", layers=1)
    result = rewritten(from_exporter(given, **options))
    with torch.no_grad():
        assert_matches(outputs(result, given), given.module(*given.args))
    assert structure(result) == structure(rewritten(from_torch(given)))


def test_batch_norms_of_a_file_go_into_its_convolutions():
    given = model("resnet50")
    graph = from_torchscript(given, training=torch.onnx.TrainingMode.PRESERVE)
    assert kinds(graph)["sub"] == 53, "the exporter left the batch norms in the file"
    result = rewritten(graph)
    assert structure(result) == (GOLDEN / "resnet50.txt").read_text()
    assert_matches(outputs(result, given), expected("resnet50"), 2e-5)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_dims_that_are_symbols(name):
    given = model(name, layers=1)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)}
    graph = import_torch(given.module, given.args, dynamic_shapes=(dims, dims))
    result = rewritten(graph)
    found = kinds(result)
    assert {one: found[one] for one in ONE_LAYER[name]} == ONE_LAYER[name]
    assert not {"gather_nd", "reduce_any", "select", "isnan"} & set(found), "masks are bools, broadcast"
    for batch, length in ((2, 7), (3, 11)):
        ids, mask = torch.randint(0, 50, (batch, length)), torch.ones(batch, length, dtype=torch.long)
        mask[-1, 4:] = 0
        other = models.Model(given.module, (ids, mask))
        with torch.no_grad():
            assert_matches(outputs(result, other), given.module(ids, mask))


def test_the_structure_tells_graphs_apart():
    def text(build, names=("a", "b")):
        graph = Graph("one")
        x = graph.input("x", (2, 4))
        weights = [graph.parameter(name, (4,)).broadcast((2, 4), (1,)) for name in names]
        graph.output("y", build(x, *weights))
        return structure(graph), kinds(graph)

    first = text(lambda x, a, b: (x * a).exp() + b)
    assert first == text(lambda x, a, b: b + (a * x).exp(), ("other", "names"))
    for build in (
        lambda x, a, b: (x * a).exp() - b, lambda x, a, b: (x * a).exp() + x, lambda x, a, b: (x + a).exp() + b,
        lambda x, a, b: ((x * a).exp() + b).reshape(8), lambda x, a, b: (x * 2.0).exp() + b,
    ):  # fmt: skip
        assert text(build)[0] != first[0]
    assert text(lambda x, a, b: (x / a).exp())[0] != text(lambda x, a, b: (a / x).exp())[0]
