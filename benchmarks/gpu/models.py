"""Slice 5: kernelized models, what they generate, and the first call of a compiled layer in a new process."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.graphs import block
from benchmarks.gpu.target import Case, Result, Target, difference, error
from kernels_hub import LocalLayerRepository, Mode, kernelize, report, use_kernel_mapping
from kernels_hub.cli import demo_models
from kernels_hub.compiler.export.emit_layer import emit_layer

ROOT = Path(__file__).resolve().parents[2]


def models(target: Target) -> dict[str, Callable[[], Any]]:
    """Encoders, a decoder, a mixture, images: of normal size, or tiny."""
    tiny = target.rehearsal
    return {
        "llama": lambda: demo_models.llama(*((1, 4, 1, 64) if tiny else (4, 512, 16, 2048))),
        "bert": lambda: demo_models.bert(*((1, 4, 1, 32) if tiny else (32, 512, 12, 768))),
        "mixtral": lambda: demo_models.mixtral(*((1, 4, 1, 64) if tiny else (4, 512, 4, 1024))),
        "vit": lambda: demo_models.vit(*((1, 1, 64) if tiny else (32, 12, 768))),
        "resnet": lambda: demo_models.resnet(*((1, (1, 1, 1, 1), 32) if tiny else (32,))),
    }


def cases(target: Target) -> Iterator[Case]:
    """Each model, text of a small one, and a layer that was compiled before."""
    for name in target.some(models(target), 2):
        for dtype in target.dtypes:
            yield Case(f"{name}, {dtype}", partial(run, target, name, dtype))
    yield Case("generate", lambda: generate(target))
    yield Case("cold start", lambda: cold_start(target))


def run(target: Target, name: str, dtype: torch.dtype) -> Result:
    """Ratios over eager of the default mapping and of torch.compile, errors against float32, what was swapped."""
    with torch.device(target.device):
        original, inputs = models(target)[name]()
    given = {key: _moved(one, target.device, dtype) for key, one in inputs.items()}
    original = original.to(target.device)
    with torch.inference_mode():
        exact = original(**{key: one.to(target.device) for key, one in inputs.items()})[0]
    original = original.to(dtype)
    kernelized = copy.deepcopy(original)
    kernelize(kernelized, mode=Mode.INFERENCE)
    rows = report(kernelized).swapped
    ways: dict[str, Callable[..., Any]] = {"eager": original, "kernels_hub": kernelized}
    if target.with_peers:
        ways["torch.compile"] = target.compiled(original)
    with torch.inference_mode():
        # A router that rounds otherwise picks other experts: nothing says that two roundings are near each other.
        errors = {key: error(way(**given)[0], exact) for key, way in ways.items()}
        if errors["kernels_hub"] > 1.5 * errors["eager"] + 1e-5:
            raise ArithmeticError(f"wrong numbers: the errors against float32 are {errors}")
        found = target.in_turn({key: partial(way, **given) for key, way in ways.items()})
    return {**found, "difference": errors, "swapped": sorted({str(row.layer_name) for row in rows})}


def _moved(one: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    return one.to(device, dtype) if one.is_floating_point() else one.to(device)


def generate(target: Target) -> Result:
    """Tokens of a Llama, greedily: the same as eager's in float32, and how long one takes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = target.sized(1024, 64)
    config = LlamaConfig(
        vocab_size=target.sized(32000, 100), hidden_size=size, intermediate_size=2 * size,
        num_hidden_layers=target.sized(8, 1), num_attention_heads=size // 64, num_key_value_heads=size // 64,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(target.device):
        model = LlamaForCausalLM(config).eval()
    prompt = torch.arange(8, device=target.device).unsqueeze(0)
    count = target.sized(64, 3)

    def written(by: Any) -> torch.Tensor:
        found: torch.Tensor = by.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)
        return found

    kernelized = kernelize(copy.deepcopy(model), mode=Mode.INFERENCE)
    if not torch.equal(written(kernelized), written(model)):
        raise ArithmeticError("a kernelized model writes other tokens than the original")
    found = target.in_turn({"eager": partial(written, model), "kernels_hub": partial(written, kernelized)})
    return {**found, "tokens": count}


def cold_start(target: Target) -> Result:
    """Seconds from a built module to the first output of a layer that was compiled before, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        emit_layer(
            block(target), layer_name="Block", out=Path(folder) / "block", name="block", training=False,
            benchmark=False, prebuilt=target.rehearsal,
        )  # fmt: skip
        _said("kernels_hub", "build", f"{folder}/block")
        said = _said("benchmarks.gpu.models", folder, *(["--rehearse"] if target.rehearsal else []))
    found: Result = json.loads(said.splitlines()[-1])
    return found


def _said(*command: str) -> str:
    """What a module prints as a program. Raises RuntimeError with its last words where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


def _first_output(folder: str, target: Target) -> Result:
    from kernels_hub import use_kernel_forward_from_hub

    torch.manual_seed(0)
    module, (x,) = block(target)
    use_kernel_forward_from_hub("Block")(type(module))
    module, x = module.eval().to(target.device), x.to(target.device)
    layer = LocalLayerRepository(Path(folder) / "block", layer_name="Block")
    with torch.inference_mode(), use_kernel_mapping({"Block": {target.device: layer}}, inherit_mapping=False):
        wanted = module(x)
        began = time.perf_counter()
        kernelize(module, mode=Mode.INFERENCE, use_fallback=False)
        got = module(x)
        target.synchronize()
        return {"first_output_s": time.perf_counter() - began, "difference": difference(got, wanted)}


if __name__ == "__main__":
    print(json.dumps(_first_output(sys.argv[1], Target.of("--rehearse" in sys.argv))))
