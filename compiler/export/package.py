"""Generated Python of an exported layer that depends on the layer, and kernel.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels_hub import files
from kernels_hub.compiler.export.source import Source
from kernels_hub.compiler.ir.op import show
from kernels_hub.escaping import DocstringText, toml_string

COMPILER = Path(__file__).parents[1]
RUNTIME = "compiler/runtime"
NATIVE = "compiler/native"
COPIED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "call": {
        RUNTIME: (
            "__init__.py", "arena.py", "arguments.py", "arrays.py", "binding.py", "by_dtype.py", "caches.py",
            "errors.py", "facts.py", "function_fields.py", "indexed_paths.py", "intervals.py", "knobs.py", "layer.py",
            "module_guard.py", "modules.py", "newest.py", "parts.py", "sizes.py", "state.py", "surroundings.py",
            "views.py", "weights.py",
        ),
        NATIVE: ("dict_version.py", "tensor_state.py", "weight_guard.py"),
    },
    "cpu": {
        RUNTIME: (
            "builder.py", "bytecode.py", "gradient.py", "native.py", "native_layer.py", "native_program.py",
            "prebuilt.py", "precompiled.py", "toolchain.py",
        ),
        NATIVE: ("*.h", "*.cpp"),
    },
    "triton": {
        RUNTIME: (
            "binaries.py", "driver.py", "launched_layer.py", "launcher.py", "tiles.py", "triton_functions.py",
            "triton_interpreter.py", "triton_program.py", "triton_versions.py",
        ),
    },
}  # fmt: skip
"""Folder of what is emitted -> folder of this library -> files that are copied as they are, to a folder of its name.

With `files.py` and `cxx_compiler.py`, they lie in a variant as in this library: the same relative imports hold in both.
"""
MARK = "# Emitted by kernels-hub compile"


def manifest(
    name: str,
    version: str,
    layer: str,
    sources: Sequence[Source],
    summary: str,
    *,
    functions: Sequence[str] = (),
    gpu: bool = False,
    prebuilt: Mapping[str, str] | None = None,
) -> str:
    """kernel.toml. gpu: with Triton kernels. prebuilt: variant -> the folder of its compiled code."""
    values = [one for of in sources for one in (*of.graph.inputs.values(), *of.graph.outputs.values())]
    dtypes = list(dict.fromkeys(value.dtype.name for value in values if value.dtype.is_float))
    lines = [
        f"{MARK}. What is written by hand here is lost when it is compiled again.",
        "[kernel]",
        f"name = {toml_string(name)}",
        f"version = {toml_string(version)}",
        'license = "Apache-2.0"',
        f"summary = {toml_string(summary)}",
        f"layers = [{toml_string(layer)}]",
        *([f"functions = {json.dumps(list(functions))}"] if functions else []),
        *([f"dtypes = {json.dumps(dtypes)}"] if dtypes else []),
        "",
        "[backends.cpu]",
        'sources = ["package", "call", "cpu"]',
        *(
            f"variants = {{ {toml_string(variant)} = [{toml_string(folder)}] }}"
            for variant, folder in (prebuilt or {}).items()
        ),
    ]
    for backend in ("cuda", "rocm") if gpu else ():
        lines += [
            "",
            f"[backends.{backend}]",
            'sources = ["package", "call", "triton"]',
            'python-depends = ["triton"]',
        ]
    return "\n".join(lines) + "\n"


def layers_file(
    layer: str, sources: Sequence[Source], summary: str, *, standalone: bool, has_backward: str = "False"
) -> str:
    """layers.py. sources: of each dtype; they differ in nothing else. has_backward: an expression."""
    source = sources[0]
    text = str(source.signature)[1:-1]
    star = [parameter.name for parameter in source.signature.parameters.values()]
    kinds = ", ".join(star)
    calls = f"LAYER.call(self{', ' + kinds if kinds else ''})"
    return "\n".join([
        '"""The layer of this repository. `self` is the module whose forward it replaces. Generated."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Any",
        "",
        "from torch import nn",
        "",
        "from .program import LAYER",
        "",
        "",
        f"class {layer}(nn.Module):",
        f'    """{DocstringText(summary)}.',
        "",
        *(f"    {line}" for line in described(sources)),
        "",
        f"    {_WEIGHTS_SHIPPED if standalone else _WEIGHTS_READ}",
        '    """',
        "",
        f"    has_backward: bool = {has_backward}",
        "    can_torch_compile: bool = False",
        "",
        f"    def forward(self{', ' + text if text else ''}) -> Any:",
        f"        return {calls}",
        "",
    ])  # fmt: skip


_WEIGHTS_READ = (
    "Reads its weights from the module. Calls that it was not compiled for run the module's own forward."
)
_WEIGHTS_SHIPPED = "Weights are the module's, or those in weights.safetensors where the module has none."


def described(sources: Sequence[Source]) -> list[str]:
    """Inputs and outputs, a line each."""
    lines: list[str] = []
    for arrow, kind in (("in ", "inputs"), ("out", "outputs")):
        for name, one in getattr(sources[0].graph, kind).items():
            dtypes = dict.fromkeys(getattr(of.graph, kind)[name].dtype.name for of in sources)
            lines.append(DocstringText(f"{arrow} {name}: {' or '.join(dtypes)} {show(one.shape)}"))
    return lines


_INIT = '''\
"""@SUMMARY@."""

from . import layers
from .program import LAYER
from .compiler.runtime.weights import Weights

weights = Weights(LAYER)

__all__ = ["layers", "weights"]
'''

_INIT_STANDALONE = '''\
"""@SUMMARY@."""

from . import layers
from .model import Model, load
from .program import LAYER
from .compiler.runtime.weights import Weights

weights = Weights(LAYER)

__all__ = ["Model", "layers", "load", "weights"]
'''


def init_file(summary: str, *, standalone: bool) -> str:
    """__init__.py."""
    return (_INIT_STANDALONE if standalone else _INIT).replace("@SUMMARY@", DocstringText(summary))


def program_file(
    kind: str, labels: Mapping[str, str], *, standalone: bool, gradients: Sequence[str] = ()
) -> str:
    """program.py. kind: the module and class of the layer. labels: dtype -> what its files' names end with.

    gradients: for each of them the file of its gradient's table; none without gradients.
    """
    module, name = kind.split(":")
    given = ["Path(__file__).parent", *(["_shipped"] if standalone else [])]
    on_gpu = name == "LaunchedLayer"
    given += ["package=__package__"] if on_gpu else []
    shown = ["    import torch", ""] if on_gpu else []
    device = '"cuda" if torch.cuda.is_available() else "cpu"' if on_gpu else ""
    several = len(labels) > 1
    if several:
        tables = [f"from .table_{label} import TABLE as {label.upper()}" for label in labels.values()]
        made = ["LAYER = ByDtype({"]
        made += [
            f'    "{dtype}": {name}({label.upper()}, {", ".join(given)}),' for dtype, label in labels.items()
        ]
        made += ["})"]
    else:
        (label,) = labels.values()
        tables = [f"from .table{'_' + label if label else ''} import TABLE"]
        made = [f"LAYER = {name}(TABLE, {', '.join(given)})"]
    layers = [f"LAYER.layers[{index}]" for index in range(len(labels))] if several else ["LAYER"]
    for position, (layer, file) in enumerate(zip(layers, gradients, strict=False)):
        gradient = f"GRADIENT_{position}" if several else "GRADIENT"
        alias = f" as {gradient}" if several else ""
        tables.append(f"from .{file.removesuffix('.py')} import GRADIENT{alias}")
        made.append(f"{layer}.gradient = Trained({gradient}, {layer})")
    return "\n".join([
        '"""The program of this layer. Generated."""',
        "",
        "from pathlib import Path",
        "",
        *(["from .compiler.runtime.by_dtype import ByDtype"] if several else []),
        *(["from .compiler.runtime.gradient import Trained"] if gradients else []),
        f"from .compiler.runtime.{module} import {name}",
        *tables,
        *(["", "", "def _shipped():", *shown, "    from .model import shipped", "", f"    return shipped({device})", ""]
          if standalone else []),
        "",
        *made,
        "",
    ])  # fmt: skip


def model_file(layer: str, source: Source) -> str:
    """model.py of an ONNX file: a module that holds the weights under the names of the file's initializers."""
    text = str(source.signature)[1:-1]
    names = ", ".join(source.signature.parameters)
    parts = {"@LAYER@": layer, "@TEXT@": text, "@NAMES@": names}
    return re.sub("|".join(parts), lambda found: parts[found[0]], _MODEL)


_MODEL = '''\
"""The model on its own, with the weights that it was compiled with. Generated."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from torch import nn

from .program import LAYER
from .compiler.runtime.arrays import read_tensors


class Model(nn.Module):
    """@LAYER@, with parameters under the names of the ONNX file's initializers. For inference."""

    def __init__(self) -> None:
        super().__init__()
        for name, tensor in read_tensors(Path(__file__).parent / "weights.safetensors").items():
            *parents, last = name.split(".")
            part: nn.Module = self
            for parent in parents:
                if parent not in part._modules:
                    part.add_module(parent, nn.Module())
                part = part._modules[parent]
            if tensor.is_floating_point():
                part.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
            else:
                part.register_buffer(last, tensor)

    def forward(self, @TEXT@) -> Any:
        return LAYER.call(self, @NAMES@)


def load() -> Model:
    """A model with weights of its own, in eval mode."""
    return Model().eval()


@functools.cache
def shipped(device: str = "cpu") -> Model:
    """The one whose weights serve modules that have none."""
    return load().to(device)
'''


def copied_files(*, gpu: bool) -> dict[str, Path]:
    """Place in what is emitted -> the file of this library that is copied there. gpu: with what runs Triton kernels."""
    copied = {
        f"{backend}/{folder}/{path.name}": path
        for backend, folders in COPIED.items()
        if gpu or backend != "triton"
        for folder, patterns in folders.items()
        for pattern in patterns
        for path in sorted((COMPILER.parent / folder).glob(pattern))
    }
    library = Path(files.__file__).parent
    beside = {
        "call": "files.py",
        "cpu": "cxx_compiler.py",
        **({"triton": "triton_launches.py"} if gpu else {}),
    }
    return {**{f"{backend}/{name}": library / name for backend, name in beside.items()}, **copied}


def kernel_name(layer: str) -> str:
    """ "LlamaMLP" -> "llama-mlp"."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3-\2\4", layer)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
