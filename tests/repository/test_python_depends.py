"""The table of Python dependencies, and Hugging Face's own."""

from __future__ import annotations

import json
from pathlib import Path

import kernels
import pytest

from kernels_hub.repository.backends import BACKENDS
from kernels_hub.repository.python_depends import PYTHON_DEPENDENCIES, is_standard, missing_packages


def test_the_table_agrees_with_hugging_face() -> None:
    theirs = json.loads((Path(kernels.__file__).parent / "python_depends.json").read_text())
    for backend in BACKENDS.values():
        allowed = theirs["general"] | theirs["backends"].get(backend.metadata_type, {})
        assert {name for name in PYTHON_DEPENDENCIES if is_standard(name, backend.name)} == set(allowed)
        for name, row in allowed.items():
            (package,) = row["python"]
            assert PYTHON_DEPENDENCIES[name].package == package["pkg"]
            assert PYTHON_DEPENDENCIES[name].module == package.get("import")


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("packaging", []),  # by distribution
        ("huggingface-hub", []),
        ("os", []),  # by module
        ("onednn", []),  # holds no module: cannot be checked
        ("nki", ["nki"]),
        ("nvidia-cutlass-dsl", ["nvidia-cutlass-dsl"]),
        ("no-such-package", ["no-such-package"]),
        ("no.such.module", ["no.such.module"]),
        ("", [""]),
        ("../x", ["../x"]),
    ],
)
def test_missing_packages(name: str, missing: list[str]) -> None:
    assert missing_packages([name]) == missing


def test_pip_names_are_reported() -> None:
    assert "apache-tvm-ffi" == PYTHON_DEPENDENCIES["tvm-ffi"].package
    assert missing_packages(["packaging", "b-missing", "a-missing"]) == ["b-missing", "a-missing"]
