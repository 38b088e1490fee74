"""Generated kernels compile for GPUs that are not here, into registers and shared memory that these have."""

from __future__ import annotations

import functools

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
pytest.importorskip("transformers", reason="needs transformers")

import transformers
from triton.knobs import runtime

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.triton.options import Options
from kernels_hub.compiler.codegen.triton.source import generate
from kernels_hub.compiler.engines.triton import ANCHORS, KNOBS
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.schedule import schedule
from tests.combinations import every_value, only_these
from tests.compiler.codegen.triton.compiled import SHARED, launches
from tests.compiler.rewrite.models import First, Model
from tests.layers.triton_compile import ARCHITECTURES

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # those of torch's exporter and of transformers
    pytest.mark.skipif(bool(runtime.interpret), reason="needs Triton's compiler, not its interpreter"),
]


def bert() -> Model:
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=384, num_hidden_layers=1, num_attention_heads=6, intermediate_size=1536
    )
    ids, mask = torch.randint(0, 500, (8, 128)), torch.ones(8, 128, dtype=torch.long)
    return Model(First(transformers.BertModel(config), "input_ids", "attention_mask"), (ids, mask))


def llama() -> Model:
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=512, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1376,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids, mask = torch.randint(0, 500, (1, 128)), torch.ones(1, 128, dtype=torch.long)
    return Model(First(model, "input_ids", "attention_mask", use_cache=False), (ids, mask))


def resnet() -> Model:
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[256, 512], depths=[1, 1], num_labels=1000
    )
    model = transformers.ResNetForImageClassification(config)
    return Model(First(model, "pixel_values"), (torch.randn(1, 3, 224, 224),))


MODELS = {"bert": bert, "llama": llama, "resnet": resnet}


@functools.cache
def graph_of(name: str, dtype: torch.dtype) -> Graph:
    torch.manual_seed(0)
    model = MODELS[name]()
    model.module.to(dtype).eval()
    given = tuple(one.to(dtype) if one.is_floating_point() else one for one in model.args)
    return rewrite(import_torch(model.module, given)).graph


def check(graph: Graph, options: Options, arch: str, sizes: dict[str, int] | None = None) -> int:
    """Compile each kernel that is like no other; returns how many."""
    found = {
        one.key(): one
        for one in launches(generate(schedule(graph, ANCHORS), options), graph.name, sizes or {})
    }
    faults = []
    for one in found.values():
        took = one.compiled(arch)
        if took.spills or took.shared > SHARED[arch] * 1024:
            faults.append(f"{one.kernel.__name__} {one.constants}: {took}")
    assert not faults, "\n".join(faults)
    return len(found)


@pytest.mark.slow
@only_these(
    ("llama", "gfx942", torch.float32),
    name=MODELS,
    arch=ARCHITECTURES,
    dtype=[torch.float32, torch.bfloat16],
)
def test_every_kernel_of_a_model(name, arch, dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    assert check(graph_of(name, dtype), Options(arch=arch), arch) >= 8


def small() -> Graph:
    """Symbolic rows: in registers or in passes; a gather; places of the greatest; running sums; a product with an epilogue."""
    graph = Graph("small")
    graph.symbol("n", 1)
    x, at = graph.input("x", ("n", 300), "float32"), graph.input("at", (4,), "int64")
    graph.output("softmax", x.softmax(0))
    graph.output("norm", x * ((x * x).mean(-1, keepdims=True) + 1e-5).unary("rsqrt"))
    graph.output("place", graph.apply("argmax", x, axis=1))
    graph.output("any", (x > 0.0).reduce("any", [1]))
    graph.output("all", x.reduce("sum", [0, 1]))
    graph.output("running", x.cumulate("sum", 1) + x.cumulate("max", 0))
    graph.output("picked", x.gather(at, 1).binary("floordiv", 3.0))
    graph.output("product", (x.transpose() @ x).unary("tanh"))
    return graph


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_kernels_of_symbolic_sizes(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    assert check(small(), Options(arch=arch), arch, {"n": 48}) >= 7


@pytest.mark.slow
@only_these(
    ("float32", "gfx942"),
    ("int64", "sm_100"),
    ("bfloat16", "sm_90"),
    dtype=["float32", "bfloat16", "int64"],
    arch=ARCHITECTURES,
)
def test_running_reductions(dtype, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    graph = Graph("running")
    x = graph.input("x", (64, 3000), dtype)
    for kind in ("sum", "prod", "max", "min"):
        for axis in (0, 1):
            graph.output(f"{kind}{axis}", x.cumulate(kind, axis))
    assert check(graph, Options(arch=arch), arch) == 8


@pytest.mark.slow
@every_value(weights=["relu", "total"], width=[64, 256], arch=ARCHITECTURES)
def test_scores_that_are_no_softmax(weights, width, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    graph = Graph(weights)
    q, k, v = (graph.input(name, (2, 8, 512, width)) for name in "qkv")
    scores = (q @ k.transpose()) * 0.1
    if weights == "relu":
        graph.output("y", scores.maximum(0.0) @ v)
    else:
        graph.output("y", scores.unary("exp").sum(-1).unary("log"))
    assert check(rewrite(graph).graph, Options(arch=arch), arch) == 1


@pytest.mark.slow
@every_value(width=[64, 128, 256], dtype=["float32", "bfloat16"], arch=ARCHITECTURES)
def test_attention_of_every_width(width, dtype, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    graph = Graph("attention")
    q, k, v = (graph.input(name, (2, 8, 512, width), dtype) for name in "qkv")
    scores = graph.apply("matmul", q, k.transpose(), dtype=types.FLOAT32) * 0.1
    graph.output("y", scores.softmax(-1).cast(dtype) @ v)
    assert check(rewrite(graph).graph, Options(arch=arch), arch) == 1


@pytest.mark.slow
@only_these(
    ("float32", "sm_80"),
    ("float32", "gfx942"),
    ("bfloat16", "sm_90"),
    dtype=["float32", "bfloat16"],
    arch=ARCHITECTURES,
)
def test_every_tile_of_the_knobs(dtype, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    graph = Graph("tiles")
    x, w = graph.input("x", (1000, 512), dtype), graph.input("w", (512, 1000), dtype)
    graph.output("y", (x @ w).unary("tanh"))
    (tiles,) = (one.values for one in KNOBS if one.name == "tile")
    for tile in tiles:
        sizes = tuple(map(int, str(tile).split("x"))) if tile else None
        check(graph, Options(arch=arch, tile=sizes), arch)
