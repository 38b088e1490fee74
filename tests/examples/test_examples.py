"""Every example runs, and does what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_kernelize_a_transformers_model(result: Any) -> None:
    assert 0 <= result < 1e-4


def check_a_layer_repository_of_ones_own(result: Any) -> None:
    assert result == 1


def check_train_a_kernelized_model(result: Any) -> None:
    expected, losses = result
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 0.3, "it learns"


def check_a_mapping_of_ones_own(result: Any) -> None:
    assert result == ["GELU", "SiLU"]


def check_a_hub_of_ones_own(result: Any) -> None:
    assert "acme/relu@0.1.0/torch-cpu" in result
    assert "2 swapped" in result


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example(path: Path) -> None:
    globals()[f"check_{path.stem}"](load(path).main())
