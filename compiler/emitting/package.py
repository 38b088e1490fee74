"""The Python of what is emitted that depends on the layer, and kernel.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from kernels_hub.compiler.codegen import toolchain
from kernels_hub.compiler.emitting.source import Source
from kernels_hub.compiler.ir.op import show

RUNTIME = Path(__file__).parent / "runtime"
"""The Python that is copied."""
COPIED = {
    "call": ("arena.py", "arguments.py", "arrays.py", "errors.py", "layer.py", "modules.py", "parts.py", "state.py",
             "weights.py"),
    "cpu": ("native.py", "native_layer.py", "prebuilt.py"),
}  # fmt: skip
"""Folder of what is emitted -> what is copied there."""
MARK = "# Emitted by kernels-hub compile"
_OWN_ERRORS = "from kernels_hub.compiler.errors import BuildError"


def manifest(
    name: str, version: str, layer: str, source: Source, summary: str, functions: Sequence[str]
) -> str:
    """kernel.toml."""
    dtypes = dict.fromkeys(one.dtype.name for one in source.graph.inputs.values() if one.dtype.is_float)
    dtypes |= dict.fromkeys(one.dtype.name for one in source.graph.outputs.values() if one.dtype.is_float)
    lines = [
        f"{MARK}. What is written by hand here is lost when it is compiled again.",
        "[kernel]",
        f"name = {json.dumps(name)}",
        f"version = {json.dumps(version)}",
        'license = "Apache-2.0"',
        f"summary = {json.dumps(summary, ensure_ascii=False)}",
        f"layers = [{json.dumps(layer)}]",
        *([f"functions = {json.dumps(list(functions))}"] if functions else []),
        *([f"dtypes = {json.dumps(list(dtypes))}"] if dtypes else []),
        "",
        "[backends.cpu]",
        'sources = ["package", "call", "cpu"]',
    ]
    return "\n".join(lines) + "\n"


def layers_file(layer: str, source: Source, summary: str, *, standalone: bool) -> str:
    """layers.py."""
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
        f'    """{in_docstring(summary)}.',
        "",
        *(f"    {line}" for line in described(source)),
        "",
        f"    {_WEIGHTS_SHIPPED if standalone else _WEIGHTS_READ}",
        '    """',
        "",
        "    has_backward: bool = False",
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


def described(source: Source) -> list[str]:
    """Inputs and outputs, a line each."""
    both = (*source.graph.inputs.items(), *source.graph.outputs.items())
    arrows = ["in "] * len(source.graph.inputs) + ["out"] * len(source.graph.outputs)
    return [
        in_docstring(f"{arrow} {name}: {one.dtype.name} {show(one.shape)}")
        for arrow, (name, one) in zip(arrows, both, strict=True)
    ]


def in_docstring(text: str) -> str:
    """A text without what ends a docstring, or means something in one."""
    return text.replace("\\", "/").replace('"', "'")


INIT = '''\
"""{summary}."""

from . import layers, weights

__all__ = ["layers", "weights"]
'''

INIT_STANDALONE = '''\
"""{summary}."""

from . import layers, weights
from .model import Model, load

__all__ = ["Model", "layers", "load", "weights"]
'''

PROGRAM = '''\
"""The program of this layer. Generated."""

from pathlib import Path

from .native_layer import NativeLayer
from .table import TABLE

LAYER = NativeLayer(TABLE, Path(__file__).parent)
'''

PROGRAM_STANDALONE = '''\
"""The program of this layer. Generated."""

from pathlib import Path

from .native_layer import NativeLayer
from .table import TABLE


def _shipped():
    from .model import shipped

    return shipped()


LAYER = NativeLayer(TABLE, Path(__file__).parent, _shipped)
'''


def model_file(layer: str, source: Source) -> str:
    """model.py of an ONNX file: a module that holds the weights under the names of the file's initializers."""
    text = str(source.signature)[1:-1]
    names = ", ".join(source.signature.parameters)
    return _MODEL.replace("@LAYER@", layer).replace("@TEXT@", text).replace("@NAMES@", names)


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
    """@LAYER@, with parameters under the names of the ONNX file's initializers. For inference on the CPU."""

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
def shipped() -> Model:
    """The one whose weights serve modules that have none."""
    return load()
'''


def toolchain_file() -> str:
    """The compiler's toolchain, without the compiler."""
    text = Path(toolchain.__file__).read_text(encoding="utf-8")
    assert text.count(_OWN_ERRORS) == 1, (
        "toolchain.py imports its errors in another way than what is emitted expects"
    )
    return text.replace(_OWN_ERRORS, "from .errors import BuildError")


def kernel_name(layer: str) -> str:
    """ "LlamaMLP" -> "llama-mlp"."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3-\2\4", layer)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
