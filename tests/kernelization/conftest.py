"""Layer repositories on disk, made by the tests that need one."""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import LocalLayerRepository, load_kernel_mapping, use_kernel_mapping
from kernels_hub.compiler.jit import store as layer_store
from kernels_hub.kernelization import jit
from kernels_hub.kernelization import mapping as mapping_module
from tests.warm_exporter import warm_exporter

RepositoryMaker = Callable[..., Path]


@pytest.fixture
def make_repository(tmp_path: Path) -> RepositoryMaker:
    """make_repository("name", "class L(nn.Module): …") -> folder of a repository in HF's layout."""

    def make(
        name: str,
        layers: str,
        *,
        variant: str = "torch-cpu",
        init: str = "from . import layers\n",
        root: str | None = None,
    ) -> Path:
        repository = tmp_path / (root or name)
        folder = repository / "build" / variant
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(init)
        (folder / "layers.py").write_text(
            "import torch\nfrom torch import nn\n\n\n" + textwrap.dedent(layers)
        )
        (folder / "metadata.json").write_text(
            json.dumps(
                {
                    "name": name,
                    "id": f"_{name}_{variant.replace('-', '_')}",
                    "version": 1,
                    "license": "Apache-2.0",
                    "python-depends": [],
                    "backend": {"type": variant.rpartition("-")[2]},
                }
            )
        )
        return repository

    return make


DOUBLE = """
class Double(nn.Module):
    can_torch_compile = True

    def forward(self, x):
        return x * 2
"""


@pytest.fixture
def double(make_repository: RepositoryMaker) -> LocalLayerRepository:
    """A kernel `Double` that doubles its input, where the tests' originals return it as it is."""
    return LocalLayerRepository(make_repository("double", DOUBLE), layer_name="Double")


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """No test sees what another registered for the process."""
    registry = mapping_module._REGISTRY
    saved = (registry.mapping, registry.inherits_default)
    registry.mapping, registry.inherits_default = mapping_module.KernelMapping(), False
    yield
    registry.mapping, registry.inherits_default = saved


@pytest.fixture
def no_log_propagation(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kernels_hub")
    return caplog


def same_class(name: str = "Same", layer_name: str = "Double") -> type[nn.Module]:
    """A fresh class tagged `layer_name` that returns its input."""
    from kernels_hub import use_kernel_forward_from_hub

    @use_kernel_forward_from_hub(layer_name)
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    Same.__name__ = Same.__qualname__ = name
    return Same


@pytest.fixture(scope="session")
def compiled_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of compiled layers of this process's tests: models of one kind and size are compiled once."""
    return tmp_path_factory.mktemp("compiled") / "layers"


@pytest.fixture
def mapping_compiled(compiled_layers: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped mapping `compiled`, with a store that begins empty."""
    warm_exporter()
    monkeypatch.setattr(layer_store, "store_folder", lambda: compiled_layers)
    jit._forward_of.cache_clear()
    with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False), torch.no_grad():
        yield
