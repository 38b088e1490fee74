"""Small models of the structure of real ones, whole, against the oracle."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

from kernels_hub.compiler.engines.tensors import to_array
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.rewrite.pipeline import rewrite
from tests.combinations import first
from tests.compiler.codegen.triton.held import assert_agrees
from tests.compiler.rewrite import models

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's exporter and of transformers


@pytest.mark.parametrize(
    ("name", "dtype"),
    first(1, [("bert", "float32"), ("llama", "bfloat16"), ("llama", "float32"), ("resnet50", "float32")]),
)
def test_models(name, dtype, device):
    torch.manual_seed(0)
    model = models.randomised(getattr(models, name)())
    of = getattr(torch, dtype)
    model.module.to(of)
    given = tuple(one.to(of) if one.is_floating_point() else one for one in model.args)
    graph = rewrite(import_torch(model.module, given)).graph
    named = zip(graph.inputs.values(), given, strict=True)
    assert_agrees(graph, device, arrays=[to_array(one, value.dtype) for value, one in named])
