"""The interface of a repository, read from its sources: exactly what callers depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.errors import RepositoryNotFoundError
from kernels_hub.repository.build import build_repository
from kernels_hub.repository.bundled import bundled_folder, bundled_names
from kernels_hub.repository.interface import built_variants, read_interface

FILES = {
    "kernel.toml": """
        [kernel]
        name = "scale"
        version = "1.2.0"
        license = "MIT"
        summary = "scales"
        layers = ["Scale"]
        functions = ["scale", "computed"]
        kernel-depends = [{ repo-id = "org/b", version = 2 }, { repo-id = "org/a", revision = "main" }]

        [backends.cpu]
        sources = ["package", "cpu"]

        [backends.cuda]
        sources = ["package", "triton"]
        python-depends = ["triton", "einops"]
        archs = ["9.0"]
        """,
    "package/__init__.py": "from . import layers\nfrom .functions import f as scale\nfrom .kernels import computed\n",
    "package/functions.py": 'def f(a, /, b, c=1, *rest, d: int, e="x", **more) -> int:\n    """Formula.\n\n    More."""\n',
    "package/layers.py": (
        "from torch import nn\nfrom .kernels import TRAINS\n"
        "class _Base(nn.Module):\n    can_torch_compile = True\n    has_backward = False\n"
        "    def forward(self, x, *, eps=1e-6): ...\n"
        "class Scale(_Base):\n    has_backward: bool = TRAINS\n"
    ),
    "cpu/kernels.py": "TRAINS = True\ncomputed = abs\n",
    "triton/kernels.py": "TRAINS = False\ncomputed = abs\n",
}


@pytest.fixture
def source(tmp_path: Path, write_files) -> Path:
    return write_files(tmp_path / "scale", FILES)


def test_what_is_read(source: Path):
    found = read_interface(source)
    assert (found.name, found.version, found.license, found.summary) == ("scale", "1.2.0", "MIT", "scales")
    assert {name: layer.signature for name, layer in found.layers.items()} == {"Scale": "x, *, eps=1e-06"}
    assert found.layers["Scale"].flags == {"can_torch_compile": True, "has_backward": "TRAINS"}
    assert found.functions["scale"].signature == "a, /, b, c=1, *rest, d, e='x', **more"
    assert found.functions["scale"].summary == "Formula."
    assert found.functions["computed"].signature == "…"
    cpu, cuda = found.variants["torch-cpu"], found.variants["torch-cuda"]
    assert (cpu.python_depends, cuda.python_depends, cuda.archs) == ((), ("einops", "triton"), ("9.0",))
    assert cpu.kernel_depends == ("org/a@main", "org/b@v2")
    assert set(cpu.files) == {"__init__.py", "functions.py", "kernels.py", "layers.py"}


def test_a_build_has_the_interface_of_its_source(source: Path, tmp_path: Path):
    build_repository(source, tmp_path / "out")
    assert built_variants(source) == []
    assert built_variants(tmp_path / "out") == ["torch-cpu", "torch-cuda"]
    built, in_place = read_interface(tmp_path / "out"), read_interface(source)
    assert (built.layers, built.functions, built.version) == (in_place.layers, in_place.functions, "1.2.0")
    for name, variant in built.variants.items():
        assert variant.files == in_place.variants[name].files
        assert variant.kernel_depends == in_place.variants[name].kernel_depends
    assert read_interface(tmp_path / "out" / "build").variants == built.variants
    one = read_interface(tmp_path / "out" / "build" / "torch-cuda")
    assert list(one.variants) == ["torch-cuda"]


def test_a_kernel_whose_metadata_lists_nothing(tmp_path: Path, write_files):
    """As Hugging Face's builds: what is public counts."""
    folder = write_files(
        tmp_path / "build" / "torch-cpu",
        {
            "__init__.py": "from . import layers\nfrom .ops import gelu, silu\n__all__ = ['gelu', 'layers']\n",
            "ops.py": "def gelu(x): ...\ndef silu(x): ...\n",
            "layers.py": (
                "import torch.nn as nn\nclass Gelu(nn.Module):\n    def forward(self, x): ...\nclass Other: ...\n"
            ),
            "metadata.json": '{"name": "act", "version": 1}',
        },
    )
    found = read_interface(folder.parent.parent)
    assert (list(found.layers), list(found.functions), found.version) == (["Gelu"], ["gelu"], "1")


@pytest.mark.parametrize("name", bundled_names())
def test_every_bundled_layer_has_a_signature(name: str):
    found = read_interface(bundled_folder() / name)
    assert found.layers
    for layer in found.layers.values():
        assert layer.parameters
        assert layer.flags
        assert layer.summary


def test_no_repository(tmp_path: Path):
    with pytest.raises(RepositoryNotFoundError):
        read_interface(tmp_path)
