"""Examples in docstrings of public functions run, and print what they say; every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kernels_hub
from kernels_hub import compiler

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # some examples leave settings at their defaults, which warns

REPOSITORIES = {
    "my-kernels/kernel.toml": """
        [kernel]
        name = "scale"
        version = "1.0.0"
        summary = "twice what it is given"
        license = "Apache-2.0"
        [backends.cpu]
        sources = ["package"]
    """,
    "my-kernels/package/__init__.py": "def doubled(x): return x * 2",
    "my-stack/kernel.toml": """
        [kernel]
        name = "stack"
        version = "1.0.0"
        summary = "four times what it is given"
        license = "Apache-2.0"
        kernel-depends = [{ repo-id = "acme/scale", version = 1 }]
        [backends.cpu]
        sources = ["package"]
    """,
    "my-stack/package/__init__.py": """\
from kernels_hub import get_kernel_dep
scale = get_kernel_dep("acme/scale")
def quadrupled(x): return scale.doubled(scale.doubled(x))
""",
}

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    names = [("kernels_hub", name) for name in kernels_hub.__all__]
    names += [("kernels_hub.compiler", name) for name in compiler._PUBLIC]
    for module, name in names:
        found = getattr(importlib.import_module(module), name)
        if callable(found) and not inspect.isclass(found):
            yield name, found


FUNCTIONS = dict(public_functions())


def namespace() -> dict[str, Any]:
    """What an example may use without importing it."""
    found = {name: getattr(kernels_hub, name) for name in kernels_hub.__all__}
    found |= {name: getattr(compiler, name) for name in ("Graph", "evaluate", "print_graph")}
    return found | FUNCTIONS | {"np": np, "torch": torch, "nn": nn, "F": F, "onnx": onnx, "Path": Path}


def run(name: str, text: str) -> str:
    """Run the examples of a docstring; what is wrong with them."""
    example = doctest.DocTestParser().get_doctest(text, namespace(), name, None, 0)
    lines: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=lines.append)
    return "".join(lines)


def has_example(function: Callable[..., Any]) -> bool:
    return ">>>" in (function.__doc__ or "")


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories in the folders "my-kernels", which also stands for acme/scale of a Hub, and "my-stack"."""
    for inside, text in REPOSITORIES.items():
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/scale={tmp_path / 'my-kernels'}")


@pytest.mark.usefixtures("repositories")
@pytest.mark.parametrize("name", sorted(name for name, one in FUNCTIONS.items() if has_example(one)))
def test_an_example_prints_what_it_says(name: str):
    with kernels_hub.use_kernel_mapping({}):
        problem = run(name, inspect.getdoc(FUNCTIONS[name]) or "")
    assert not problem, problem


def test_public_functions_have_an_example():
    without = {name for name, one in FUNCTIONS.items() if not has_example(one)}
    assert not without, f"give them an example (>>>): {sorted(without)}"


def test_a_wrong_example_is_found():
    assert "Expected:\n    3" in run("wrong", ">>> 1 + 1\n3\n")
    assert not run("right", ">>> 1 + 1\n2\n")
