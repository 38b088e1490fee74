"""Slice 3: every bundled layer with Triton kernels, forward and backward, against what a user would take instead."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.machine import bandwidth, peak
from benchmarks.gpu.target import Case, Result, Step, Target, differences_of, nbytes, tensors
from benchmarks.layers import cases_module
from kernels_hub import BundledLayerRepository
from kernels_hub.kernelization.bind import KernelForward, LoadedLayer, load_layer, weights_protocol
from kernels_hub.repository.bundled import bundled_folder, bundled_names

Original = Callable[[], torch.nn.Module]
_LIGER = {"RMSNorm": "LigerRMSNorm", "LayerNorm": "LigerLayerNorm"}
"""Layer -> the class of Liger-Kernel that takes its width."""


def cases(target: Target) -> Iterator[Case]:
    """For each layer, shape and dtype: a call, and where the kernel has a backward a training step."""
    for repository in with_triton():
        for dtype in target.dtypes:
            with contextlib.nullcontext() if target.rehearsal else FakeTensorMode():  # labels, and no memory
                labels = [label for label, _, _ in shapes(target, repository, dtype)]
            for label in labels:
                for backward in (False, True):
                    name = f"{repository}: {label}, {dtype}{', training' if backward else ''}"
                    yield Case(name, partial(run, target, repository, label, dtype, backward))


def with_triton() -> list[str]:
    """The bundled repositories that have kernels for GPUs."""
    manifests = {
        name: tomllib.loads((bundled_folder() / name / "kernel.toml").read_text(encoding="utf-8"))
        for name in bundled_names()
    }
    return [name for name, manifest in manifests.items() if "cuda" in manifest["backends"]]


def shapes(target: Target, repository: str, dtype: torch.dtype) -> list[tuple[str, Original, Any]]:
    """The cases of a repository's benchmark; in a rehearsal the one that is the least work."""
    if target.rehearsal:
        return [_least(repository, target.device, dtype)]
    found: list[tuple[str, Original, Any]] = cases_module(repository).cases(target.device, dtype)
    return found


@functools.cache  # to find out takes longer than to run it
def _least(repository: str, device: str, dtype: torch.dtype) -> tuple[str, Original, Any]:
    """The case that is the least work."""
    found: list[tuple[str, Original, Any]] = cases_module(repository).cases(device, dtype)
    label, factory, inputs = min(found, key=lambda one: (flops(one[1](), one[2]), nbytes(one[2])))
    return label, factory, _few_rows(inputs)


def _few_rows(inputs: Any) -> Any:
    """Eight rows at most of inputs that have one number of rows; others as they are."""
    if len({one.shape[:1] for one in tensors(inputs)}) > 1:
        return inputs
    return tuple(one[:8] if isinstance(one, torch.Tensor) else one for one in inputs)


def flops(module: torch.nn.Module, arguments: Any) -> int:
    """Of the products of a call, as PyTorch counts them; of attention, which not every release counts, written out."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module(*arguments)
    return int(counter.get_total_flops())


def run(
    target: Target,
    repository: str,
    label: str,
    dtype: torch.dtype,
    backward: bool,
) -> Result:
    """Ratios over eager, with the difference from it and the share of the roof that the kernel reaches."""
    torch.manual_seed(0)
    layer = label.split(maxsplit=1)[0]
    factory, inputs = next(
        (factory, inputs) for name, factory, inputs in shapes(target, repository, dtype) if name == label
    )
    with torch.device(target.device):
        original = factory().to(dtype=dtype).train(backward)
    loaded = load_layer(
        BundledLayerRepository(repository, layer_name=layer), variant(target, original, inputs)
    )
    if backward and not loaded.has_backward:
        return {"skipped": "the kernel has no backward"}
    ways: dict[str, Callable[..., Any]] = {
        "eager": original,
        "kernels_hub": kernelized(original, loaded, backward),
    }
    ways |= peers(target, layer, original)
    arguments = tuple(
        one.detach().clone().requires_grad_() if backward and _floats(one) else one for one in inputs
    )
    with torch.set_grad_enabled(backward):
        results = {name: way(*arguments) for name, way in ways.items()}
    differences = differences_of(results, "kernels_hub", dtype)
    if backward:
        # Not of ones: the gradient of a LayerNorm's input is zero then, and only rounding would be compared.
        incoming = [torch.randn_like(one) for one in tensors(results["eager"]) if one.requires_grad]
        gradients = {name: _gradients(way, original, arguments, incoming) for name, way in ways.items()}
        of_gradients = differences_of(gradients, "kernels_hub", dtype)
        differences |= {f"{name}, gradients": found for name, found in of_gradients.items()}
        steps: dict[str, Step] = {
            name: partial(_gradients, way, original, arguments, incoming) for name, way in ways.items()
        }
    else:
        steps = {name: torch.inference_mode()(partial(way, *arguments)) for name, way in ways.items()}
    found = target.in_turn(steps)
    found["difference"] = differences
    if not backward and not target.once:
        found |= roof(target, original, arguments, results["eager"], found["us"]["kernels_hub"] / 1e6, dtype)
    return found


def variant(target: Target, original: torch.nn.Module, inputs: Any) -> str:
    """Whose kernels run. In a rehearsal of products, or of large weights, the CPU's: the interpreter takes minutes."""
    long = target.rehearsal and (flops(original, inputs) or nbytes(list(original.parameters())) > 1 << 20)
    return "cpu" if long else "cuda"


def _floats(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point()


def kernelized(original: torch.nn.Module, loaded: LoadedLayer, backward: bool) -> Callable[..., Any]:
    """The kernel as it runs in the place of the original's forward, on the same weights."""
    forward = KernelForward(loaded.forward, original)
    weights = weights_protocol(loaded.forward)
    if weights is not None and not backward:
        weights.prepare(original)
    return forward


def peers(target: Target, layer: str, original: torch.nn.Module) -> dict[str, Callable[..., Any]]:
    """torch.compile, and Liger-Kernel where it is installed and has the layer."""
    found: dict[str, Callable[..., Any]] = {}
    if target.with_peers:
        found["torch.compile"] = target.compiled(original)
    if layer in _LIGER and importlib.util.find_spec("liger_kernel") is not None:
        module = importlib.import_module("liger_kernel.transformers")
        parameters = dict(original.named_parameters())
        liger = getattr(module, _LIGER[layer])(parameters["weight"].shape[-1])
        for name, parameter in parameters.items():  # the same ones, so that their gradients are compared
            setattr(liger, name, parameter)
        found["liger"] = liger
    return found


def _gradients(
    way: Callable[..., Any], module: torch.nn.Module, arguments: Any, incoming: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Of a step's inputs and of the module's parameters. incoming: of its results."""
    results = [one for one in tensors(way(*arguments)) if one.requires_grad]
    wanted = [one for one in (*arguments, *module.parameters()) if _floats(one) and one.requires_grad]
    found = torch.autograd.grad(results, wanted, incoming, allow_unused=True)
    return [one for one in found if one is not None]


def roof(
    target: Target,
    original: torch.nn.Module,
    arguments: Any,
    results: Any,
    seconds: float,
    dtype: torch.dtype,
) -> Result:
    """The least time that memory and arithmetic allow, of what was measured in slice 1, and the share reached."""
    moved = nbytes(arguments) + nbytes(results) + nbytes(list(original.parameters()))
    by_memory, by_products = moved / bandwidth(target), flops(original, arguments) / peak(target, dtype)
    bound = "memory" if by_memory >= by_products else "products"
    return {"bound": bound, "share": round(max(by_memory, by_products) / seconds, 3)}
