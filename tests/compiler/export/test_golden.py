"""Golden exported layers: the files that are written, the text of those made for the layer, and the numbers.

Of what every export ships alike, only the names are kept, in golden/shared_files.txt. To accept other texts, read
the difference, then

    ACCEPT_GOLDEN=1 python -m pytest tests/compiler/export/test_golden.py
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from kernels_hub import (
    LocalLayerRepository,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    use_kernel_mapping,
)
from kernels_hub.compiler import emit_layer
from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.repository.build import build_repository
from tests.tolerances import assert_close
from tests.written_before.models import attention_block, normed_mlp

GOLDEN = Path(__file__).parent / "golden"
SHARED = GOLDEN / "shared_files.txt"

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

MADE_FOR_THE_LAYER = (
    "README.md", "kernel.toml", "package/*.py", "cpu/program*.cpp", "cpu/program.py", "cpu/table*.py",
    "triton/kernels*.py", "triton/program.py", "triton/table*.py",
)  # fmt: skip
"""Files whose text is kept. A drawing is made for the layer, too, but read by nobody as text."""
DRAWING = "graph.svg"


@dataclass(frozen=True)
class Layer:
    """What is exported, and which of its dimensions vary."""

    name: str
    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    dims: tuple[str, ...]


LAYERS = (
    Layer("NormedMLP", normed_mlp, ("rows",)),
    Layer("AttentionBlock", attention_block, ("batch", "length")),
)


@dataclass(frozen=True)
class Export:
    """An exported repository, and where its golden files are."""

    layer: Layer
    path: Path
    files: tuple[str, ...]

    @property
    def golden(self) -> Path:
        return GOLDEN / self.layer.name

    def texts(self) -> Iterator[tuple[str, str]]:
        """The files made for the layer."""
        for name in self.files:
            if is_made_for_the_layer(name):
                text = (self.path / name).read_text(encoding="utf-8")
                yield name, without_this_machine(text) if name == "README.md" else text


def is_made_for_the_layer(name: str) -> bool:
    """Whether a file's text is kept."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in MADE_FOR_THE_LAYER)


def without_this_machine(card: str) -> str:
    """A card without measured errors, and without the versions and the processor that it was made with."""
    card = re.sub(r"\b\d\.\de[-+]\d\d\b", "<error>", card)
    return re.sub(r"(?<=\n## Made by\n\n)kernels-hub .*? Inputs are", "<versions>. Inputs are", card)


@pytest.fixture(scope="module", params=LAYERS, ids=lambda layer: layer.name)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Export:
    layer: Layer = request.param
    module, x = layer.make()
    shapes = {"x": {axis: Dim(name) for axis, name in enumerate(layer.dims)}}
    out = tmp_path_factory.mktemp("golden") / layer.name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_HUB_PREBUILT", "ignore")  # cards say whether an interpreter was there
        made = emit_layer(
            (module, (x,)), layer_name=layer.name, out=out, dynamic_shapes=shapes, benchmark=False
        )
    return Export(layer, out, tuple(name.replace(os.sep, "/") for name in made.files))


def compared(path: Path, text: str) -> None:
    """Compare a text with a golden file; write it where new ones are accepted."""
    if os.environ.get("ACCEPT_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.is_file(), f"{path.name} has no golden file: see the head of this file"
    assert text == path.read_text(encoding="utf-8"), f"{path} differs: see the head of this file"


def test_the_files(export: Export) -> None:
    shared = "".join(
        f"{name}\n" for name in export.files if not is_made_for_the_layer(name) and name != DRAWING
    )
    compared(SHARED, shared)
    own = [name for name, _ in export.texts()]
    kept = sorted(
        path.relative_to(export.golden).with_suffix("").as_posix()
        for path in export.golden.rglob("*")
        if path.suffix == ".golden"
    )
    if os.environ.get("ACCEPT_GOLDEN") == "1":
        for name in set(kept) - set(own):
            (export.golden / f"{name}.golden").unlink()
    else:
        assert own == kept
    assert DRAWING in export.files


def test_the_text_of_what_is_made_for_the_layer(export: Export) -> None:
    for name, text in export.texts():
        compared(export.golden / f"{name}.golden", text)


def test_sources_say_what_they_are(export: Export) -> None:
    """At their tops; and C++ names, at its statements, the layers of the module that they compute."""
    for name, text in export.texts():
        if name.endswith((".py", ".cpp")):
            first = text.partition("\n")[0]
            assert first.startswith(('"""', "//", "/*", "#")), f"{name} begins with {first!r}"
        if fnmatch.fnmatchcase(name, "cpu/program*.cpp"):
            assert "// norm (" in text, name


def numbers(module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """What a call gives, and the gradients of the sum of its squares."""
    given = x.clone().requires_grad_()
    result = module(given)
    result.square().sum().backward()
    gradients = {name: one.grad for name, one in module.named_parameters()}
    return {"output": result.detach(), "gradient of x": given.grad} | {
        f"gradient of {name}": one for name, one in gradients.items() if one is not None
    }


def test_the_numbers(export: Export, tmp_path: Path) -> None:
    """Those of the built layer, in inference and in training, are those that were kept, and the original's."""
    name = export.layer.name
    build_repository(export.path, tmp_path, check=True, backends=["cpu"])
    module, x = export.layer.make()
    original = numbers(module, x)
    module.zero_grad()
    replace_kernel_forward_from_hub(type(module), name)
    model = nn.Sequential(module)
    results = {}
    for mode in (Mode.INFERENCE, Mode.TRAINING):
        layer = LocalLayerRepository(tmp_path, layer_name=name)
        with use_kernel_mapping({name: {"cpu": layer}}, inherit_mapping=False):
            kernelize(model, mode=mode, device="cpu", use_fallback=False)
        assert len(report(model).swapped) == 1
        if mode is Mode.INFERENCE:
            with torch.inference_mode():
                results["inference"] = model(x).clone()
        else:
            results |= {key.replace("0.", ""): one for key, one in numbers(model, x).items()}
    path = export.golden / "numbers.json"
    if os.environ.get("ACCEPT_GOLDEN") == "1":
        rows = (
            f"{json.dumps(key)}: {json.dumps([round(n, 8) for n in one.flatten().tolist()])}"
            for key, one in results.items()
        )
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert list(kept) == list(results)
    for key, one in results.items():
        # Rounded over several products and sums, in an order that depends on the processor's vectors.
        assert_close(one, torch.tensor(kept[key]).view(one.shape), factor=8)
        assert_close(one, original["output" if key == "inference" else key], factor=8)


def test_a_card_says_nothing_of_this_machine() -> None:
    card = "| 1.7e-07 |\n\n## Made by\n\nkernels-hub 0.1.0, torch 2.15.0, on AMD EPYC, 2 CPUs. Inputs are seeded.\n"
    assert without_this_machine(card) == "| <error> |\n\n## Made by\n\n<versions>. Inputs are seeded.\n"
