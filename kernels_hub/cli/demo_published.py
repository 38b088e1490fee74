"""Compiled layers, published and used by version: a Llama MLP and a BERT layer from modules, MiniLM from an ONNX file.

    compile -> publish to a Hub of one's own -> a fresh process with empty caches: kernelize by a version specifier
                                             -> another one: Hugging Face's `kernels` client

What the demo ends with, and `examples/publish_compiled_layers.py` shows. Everything happens in one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_hub.numerics import largest_error

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

ORGANISATION = "acme"
VERSION = "1.0.0"
SPECIFIER = ">=1.0,<2"
_MARK = "@@"


@dataclass(frozen=True)
class Layer:
    """A layer repository that was emitted. model: a builder of `demo_models`, called with `sizes`; "" for an ONNX file.

    cls: the class that it replaces, as "module:class".
    """

    name: str
    path: str
    model: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    cls: str = ""

    @property
    def repository(self) -> str:
        """Where it is published."""
        return f"{ORGANISATION}/{Path(self.path).name}"


@dataclass(frozen=True)
class Used:
    """A layer in a fresh process. first_s: from the built model to its first output, downloads and imports included.

    error: the largest difference from the original, in units of the original's largest value. ratio: the median of
    original / compiled over calls in turn, of the whole model that the layer is part of.
    """

    name: str
    kernel: str
    swapped: int
    first_s: float
    error: float
    ratio: float


def llama_mlp(folder: Path, *, layers: int = 2, hidden: int = 256, length: int = 64) -> Layer:
    """Compile the MLP of a Llama, with any batch and length."""
    from torch.export import Dim

    from kernels_hub.cli.demo_models import llama
    from kernels_hub.compiler.export.emit_layer import emit_layer

    sizes = {"layers": layers, "hidden": hidden, "length": length, "batch": 2}
    model, inputs = llama(**sizes)
    dims = {0: Dim("batch"), 1: Dim("length")}
    emit_layer(
        model, kwargs=inputs, layer_name="LlamaMLP", submodule="layers.0.mlp", out=folder / "llama-mlp",
        dynamic_shapes=dict.fromkeys(inputs, dims), prebuilt=True, triton=False, training=False, benchmark=False,
    )  # fmt: skip
    cls = "transformers.models.llama.modeling_llama:LlamaMLP"
    return Layer("LlamaMLP", str(folder / "llama-mlp"), "llama", sizes, cls)


def bert_layer(folder: Path, *, layers: int = 2, hidden: int = 128, length: int = 64) -> Layer:
    """Compile a layer of a BERT: attention, two norms, the MLP."""
    from torch.export import Dim

    from kernels_hub.cli.demo_models import bert
    from kernels_hub.compiler.export.emit_layer import emit_layer

    sizes = {"layers": layers, "hidden": hidden, "length": length, "batch": 2}
    model, inputs = bert(**sizes)
    dims = {0: Dim("batch"), 1: Dim("length")}
    emit_layer(
        model, kwargs=inputs, layer_name="BertLayer", submodule="encoder.layer.0", out=folder / "bert-layer",
        dynamic_shapes=dict.fromkeys(inputs, dims), prebuilt=True, triton=False, training=False, benchmark=False,
    )  # fmt: skip
    return Layer(
        "BertLayer",
        str(folder / "bert-layer"),
        "bert",
        sizes,
        "transformers.models.bert.modeling_bert:BertLayer",
    )


def minilm_encoder(folder: Path, *, layers: int = 6) -> Layer:
    """Compile MiniLM with its real weights, from the ONNX file that PyTorch exports. layers: of its six."""
    from kernels_hub.cli.demo_onnx import export
    from kernels_hub.compiler.export.emit_layer import emit_layer

    export(folder / "minilm.onnx", _minilm(layers))
    emit_layer(
        folder / "minilm.onnx", layer_name="MiniLM", out=folder / "minilm", prebuilt=True, triton=False, training=False,
        benchmark=False,
    )  # fmt: skip
    return Layer("MiniLM", str(folder / "minilm"), "", {"layers": layers})


def compiled_published_and_used(console: Console, folder: Path, **minilm: int) -> list[tuple[str, ...]]:
    """All of it, small, with what goes on in `console`'s status line. The table's rows, which are printed, too.

    Without a C++ compiler, and without what a Hub is served or compiled files are checked with, says so; gives none.
    """
    from importlib.util import find_spec

    from kernels_hub.cxx_compiler import find_compiler

    lacking = [name for name in ("starlette", "uvicorn", "dulwich", "elftools") if find_spec(name) is None]
    if find_compiler() is None or lacking:
        what = "the extra 'demo'" if lacking else "a C++ compiler"
        console.print(f"{what} is not here: no layer is compiled and published")
        return []
    layers = []
    for what, compiled in (
        ("a Llama MLP, from a module", llama_mlp),
        ("a BERT layer, from a module", bert_layer),
        ("MiniLM with its real weights, from an ONNX file", lambda at: minilm_encoder(at, **minilm)),
    ):
        with console.status(f"compiling {what} …"):
            started = time.perf_counter()
            layers.append(compiled(folder))
        console.print(f"compiled {what}: {time.perf_counter() - started:.1f} s")
    with console.status("starting a Hub on this machine …") as status, served(folder) as environment:
        for layer in layers:
            status.update(f"publishing {layer.repository} {VERSION} …")
            publish(layer, environment)
        status.update(f"a fresh process, empty caches: kernelizing by {SPECIFIER!r} …")
        used = use(layers, environment, folder / "ours")
        status.update("another one, with Hugging Face's client …")
        there = find_spec("kernels") is not None
        theirs = use_with_kernels(layers, environment, folder / "theirs") if there else {}
    rows = table(used, theirs)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        console.print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), highlight=False
        )
    return rows


@contextlib.contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """A Hub in a folder, with a trusted organisation. Gives the environment of who publishes there."""
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "KERNELS_HUB_CACHE": str(folder / "compiled"),
    }
    environment.pop("HF_HUB_OFFLINE", None)
    root = str(folder / "hub")
    _command(environment, "hub", "user", "add", "ada", "--root", root)
    _command(environment, "hub", "org", "add", ORGANISATION, "--admin", "ada", "--trusted", "--root", root)
    token = _command(environment, "hub", "token", "new", "ada", "--role", "write", "--root", root)
    command = [sys.executable, "-m", "kernels_hub", "serve", "--root", root, "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            announced = next(line for line in server.stdout if "http://" in line)
            endpoint = next(word for word in announced.split() if word.startswith("http://"))
            yield environment | {"HF_ENDPOINT": endpoint, "HF_TOKEN": token}
        finally:
            server.terminate()


def publish(layer: Layer, environment: Mapping[str, str]) -> None:
    """Build a repository and publish it as v1.0.0."""
    _command(environment, "publish", layer.path, "--repo", layer.repository, "--version", VERSION)


def use(layers: Sequence[Layer], environment: Mapping[str, str], caches: Path) -> list[Used]:
    """In a fresh process with empty caches: kernelize a model with each, by a version specifier."""
    return [Used(**row) for row in _apart("kernelized", layers, environment, caches)]


def use_with_kernels(
    layers: Sequence[Layer], environment: Mapping[str, str], caches: Path
) -> dict[str, float]:
    """In a fresh process with empty caches, by Hugging Face's client: layer -> error as in `Used`."""
    return dict(_apart("by_the_other_client", layers, environment, caches))


def table(used: Sequence[Used], theirs: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Rows for people, a header first."""
    rows: list[tuple[str, ...]] = [
        ("layer", "published", "error", "first output", "times eager", "HF's client")
    ]
    for one in used:
        error = f"{theirs[one.name]:.0e}" if one.name in theirs else "-"
        rows.append(
            (one.name, one.kernel, f"{one.error:.0e}", f"{one.first_s:.2f} s", f"{one.ratio:.2f}", error)
        )
    return rows


# -- in fresh processes -------------------------------------------------------------------------------


def kernelized(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `use` runs."""
    import torch

    from kernels_hub.cli.demo_timing import paired

    found = []
    with torch.inference_mode():
        for layer in (Layer(**layer) for layer in layers):
            original, inputs = _original(layer)
            expected = original(**inputs)[0]
            started = time.perf_counter()
            model = _swapped(layer)
            result = model(**inputs)
            first = time.perf_counter() - started
            result = (
                result["last_hidden_state"] if isinstance(result, dict) and not layer.model else result[0]
            )
            _, __, ratio = paired(lambda o=original, i=inputs: o(**i), lambda m=model, i=inputs: m(**i), 15)  # type: ignore[misc]
            found.append(asdict(_judged(layer, model, first, largest_error(result, expected), ratio)))
    return found


def by_the_other_client(layers: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """What `use_with_kernels` runs."""
    import torch
    from kernels import get_kernel

    found = []
    with torch.inference_mode():
        for layer in (Layer(**layer) for layer in layers):
            original, inputs = _original(layer)
            expected = original(**inputs)[0]
            kernel = get_kernel(layer.repository, version=1, backend="cpu", trust_remote_code=True)
            if not layer.model:
                found.append(
                    (layer.name, largest_error(kernel.load()(**inputs)["last_hidden_state"], expected))
                )
                continue
            forward, cls = getattr(kernel.layers, layer.name).forward, _class(layer)
            for module in original.modules():
                if type(module) is cls:
                    module.forward = forward.__get__(module)
            found.append((layer.name, largest_error(original(**inputs)[0], expected)))
    return found


def _swapped(layer: Layer) -> nn.Module:
    """A second model, kernelized with the published layer."""
    from kernels_hub import (
        LayerRepository,
        Mode,
        kernelize,
        replace_kernel_forward_from_hub,
        use_kernel_mapping,
    )

    model, _ = _original(layer) if layer.model else (_encoder(), None)
    cls = _class(layer) if layer.model else type(model)
    replace_kernel_forward_from_hub(cls, layer.name)
    source = LayerRepository(layer.repository, layer_name=layer.name, version=SPECIFIER)
    with use_kernel_mapping({layer.name: {"cpu": source}}, inherit_mapping=False):
        return kernelize(model, mode=Mode.INFERENCE, device="cpu", use_fallback=False)


def _judged(layer: Layer, model: nn.Module, first: float, error: float, ratio: float) -> Used:
    from kernels_hub import report

    rows = report(model).swapped
    kernel = f"{rows[0].repository}@{rows[0].revision}"
    return Used(layer.name, kernel, len(rows), first, error, ratio)


def _original(layer: Layer) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its inputs, as eager PyTorch runs them."""
    from kernels_hub.cli import demo_models

    if not layer.model:
        model, inputs = _minilm(layer.sizes["layers"])
        return model, {name: inputs[name] for name in ("input_ids", "attention_mask")}
    model, inputs = demo_models.MODELS[layer.model](**layer.sizes)
    return model, inputs


def _minilm(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    from kernels_hub.cli.demo_models import sentences

    model, inputs = sentences(4)
    model.encoder.layer = model.encoder.layer[:layers]
    return model, inputs


def _encoder() -> nn.Module:
    """A module that has the ONNX file's arguments and no weights: the published layer brings them."""
    from torch import Tensor, nn

    class Encoder(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:  # noqa: ARG002 (the layer's)
            raise RuntimeError("the weights are in the published layer alone")

    return Encoder()


def _class(layer: Layer) -> type:
    import importlib

    module, _, name = layer.cls.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def _apart(function: str, layers: Sequence[Layer], environment: Mapping[str, str], caches: Path) -> Any:
    given = json.dumps([asdict(layer) for layer in layers])
    code = (
        "import json, sys; from kernels_hub.cli import demo_published as m; "
        f"print({_MARK!r} + json.dumps(m.{function}(json.loads(sys.argv[1]))))"
    )
    fresh = {"HF_HUB_CACHE": str(caches / "hub"), "KERNELS_HUB_CACHE": str(caches / "compiled")}
    # The tests' and the demo's models come from packages; layers come from the Hub that is served.
    answer = _run(
        [sys.executable, "-W", "ignore", "-c", code, given], {**environment, **fresh, "HF_HUB_OFFLINE": "0"}
    )
    return json.loads(
        next(line for line in answer.splitlines() if line.startswith(_MARK)).removeprefix(_MARK)
    )


def _command(environment: Mapping[str, str], *arguments: str) -> str:
    return _run([sys.executable, "-m", "kernels_hub", *arguments], environment).strip()


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} failed:\n{done.stderr.strip()}")
    return done.stdout
