"""The type check finds errors where it should, and names the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_types


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in miniature, in the layout of this one."""
    for name, text in {
        "kernels_hub/__init__.py": "",
        "kernels_hub/a.py": "from kernels_hub.compiler.b import f\nimport kernels_hub.layers\nx: str = f()\n",
        "compiler/__init__.py": "",
        "compiler/b.py": "def f() -> int:\n    return 1\n",
        "mappings/__init__.py": "",
        "layers/__init__.py": "PLACE = 1\n",
        "layers/shared/shared.py": "FACTOR = 2\n",
        "layers/some-kernel/kernel.toml": (
            '[backends.cpu]\nsources = ["package", "cpu", "../shared"]\n'
            '[backends.cuda]\nsources = ["package", "triton"]\n'
            '[backends.rocm]\nsources = ["package", "triton"]\n'
        ),
        "layers/some-kernel/package/__init__.py": "from .kernels import double\n\ndouble('x')\n",
        "layers/some-kernel/cpu/kernels.py": (
            "from .shared import FACTOR\n\ndef double(x: int) -> int:\n    return FACTOR * x\n"
        ),
        "layers/some-kernel/triton/kernels.py": "def double(x: str) -> str:\n    return x + x\n",
        "examples/one.py": "import kernels_hub.a\n\ndef untyped(x):\n    return x\n",
        "README.md": "```python\nimport kernels_hub.a\n\nkernels_hub.a.x + 1\n```\n",
        "docs/own.md": "No code.\n",
        "pyproject.toml": "[tool.mypy]\nstrict = true\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(check_types, "ROOT", tmp_path)
    monkeypatch.setattr(check_types, "TREE", tmp_path / "build" / "types")
    return tmp_path


def test_errors_are_found_through_every_kind_of_link(project: Path, capsys: pytest.CaptureFixture[str]):
    assert check_types.check([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("Found 4 errors in 4 files")
    assert {line.partition(": error:")[0] for line in lines[:-1]} == {
        "kernels_hub/a.py:3",  # the compiler, under its installed name
        "layers/some-kernel/package/__init__.py:3",  # the cpu variant; for the other it is right
        "examples/one.py:3",
        "build/types/pages/README.py:3",  # what a user who copies it is told
    }


def test_one_package_for_variants_of_the_same_folders(project: Path):
    tree = project / "build" / "types"
    assert check_types.make_tree(project, tree) == ["kernels_hub", "variants", "examples", "pages"]
    variants = [path.name for path in (tree / "variants").iterdir() if path.is_dir()]
    assert sorted(variants) == ["some_kernel_cpu", "some_kernel_cuda"]
    assert (tree / "variants/some_kernel_cpu/shared.py").resolve() == project / "layers/shared/shared.py"


def test_a_project_without_errors(project: Path, capsys: pytest.CaptureFixture[str]):
    (project / "kernels_hub/a.py").write_text("")
    (project / "layers/some-kernel/package/__init__.py").write_text("from . import kernels as kernels\n")
    (project / "examples/one.py").write_text("")
    (project / "README.md").write_text("```python\nimport kernels_hub.a\n```\n")
    assert check_types.check([]) == 0
    assert "Success: no issues found" in capsys.readouterr().out
