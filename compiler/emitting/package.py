"""The Python of what is emitted that depends on the layer, and kernel.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from kernels_hub.compiler import private_folder
from kernels_hub.compiler.codegen import toolchain
from kernels_hub.compiler.codegen.runtime import weight_guard
from kernels_hub.compiler.emitting.source import Source
from kernels_hub.compiler.ir.op import show
from kernels_hub.compiler.schedule import intervals
from kernels_hub.escaping import DocstringText, toml_string

RUNTIME = Path(__file__).parent / "runtime"
"""The Python that is copied."""
COPIED = {
    "call": ("arguments.py", "arrays.py", "caches.py", "errors.py", "knobs.py", "layer.py", "modules.py", "parts.py",
             "state.py", "verified.py", "watched.py", "weights.py"),
    "cpu": ("native.py", "native_layer.py", "native_watched.py", "prebuilt.py"),
    "triton": ("binaries.py", "driver.py", "launched_layer.py", "launcher.py"),
}  # fmt: skip
"""Folder of what is emitted -> what is copied there."""
MARK = "# Emitted by kernels-hub compile"
_BESIDE = r"^from kernels_hub\.compiler\.(\w+) import"
"""What a copied file imports from the compiler's own folder."""


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
    dtypes = list(dict.fromkeys(one.dtype.name for one in values if one.dtype.is_float))
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
    star = [one.name for one in source.signature.parameters.values()]
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

from . import layers, weights

__all__ = ["layers", "weights"]
'''

_INIT_STANDALONE = '''\
"""@SUMMARY@."""

from . import layers, weights
from .model import Model, load

__all__ = ["Model", "layers", "load", "weights"]
'''


def init_file(summary: str, *, standalone: bool) -> str:
    """__init__.py."""
    return (_INIT_STANDALONE if standalone else _INIT).replace("@SUMMARY@", DocstringText(summary))


def program_file(kind: str, labels: Mapping[str, str], *, standalone: bool) -> str:
    """program.py. kind: the module and class of the layer. labels: dtype -> what its files' names end with."""
    module, name = kind.split(":")
    shipped = ", _shipped" if standalone else ""
    on_gpu = name == "LaunchedLayer"
    shown = ["    import torch", ""] if on_gpu else []
    device = '"cuda" if torch.cuda.is_available() else "cpu"' if on_gpu else ""
    several = len(labels) > 1
    if several:
        tables = [f"from .table_{label} import TABLE as {label.upper()}" for label in labels.values()]
        made = ["LAYER = ByDtype({"]
        made += [
            f'    "{dtype}": {name}({label.upper()}, Path(__file__).parent{shipped}),'
            for dtype, label in labels.items()
        ]
        made += ["})"]
    else:
        (label,) = labels.values()
        tables = [f"from .table{'_' + label if label else ''} import TABLE"]
        made = [f"LAYER = {name}(TABLE, Path(__file__).parent{shipped})"]
    return "\n".join([
        '"""The program of this layer. Generated."""',
        "",
        "from pathlib import Path",
        "",
        *(["from .by_dtype import ByDtype"] if several else []),
        f"from .{module} import {name}",
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

from .arrays import read_tensors
from .program import LAYER


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


def toolchain_file() -> str:
    """The compiler's toolchain, without the compiler."""
    text = Path(toolchain.__file__).read_text(encoding="utf-8")
    beside = re.findall(_BESIDE, text, re.MULTILINE)
    assert beside == ["errors", "private_folder"], (
        f"toolchain.py imports {beside}, not all of which is emitted"
    )
    return re.sub(_BESIDE, r"from .\1 import", text, flags=re.MULTILINE)


def private_folder_file() -> str:
    """The compiler's folder of a process, which needs nothing of it."""
    return _alone(private_folder)


def weight_guard_file() -> str:
    """The weight guard, which needs nothing of the compiler."""
    return _alone(weight_guard)


def arena_file() -> str:
    """The compiler's interval packing, which needs nothing of it."""
    return _alone(intervals)


def _alone(module: ModuleType) -> str:
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert "from kernels_hub" not in text, f"{module.__name__} imports what is not emitted"
    return text


def kernel_name(layer: str) -> str:
    """ "LlamaMLP" -> "llama-mlp"."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3-\2\4", layer)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
