"""The command line in this process, and a layer repository to look at."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels_hub.cli import main


@dataclass(frozen=True)
class Result:
    """What one run of `kernels-hub` gave."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run("info", "path") -> exit status and output of `kernels-hub info path`."""

    def run(*arguments: str | Path) -> Result:
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), out, err)

    return run


KERNEL_TOML = """
[kernel]
name = "doubling"
version = "0.3.1"
license = "Apache-2.0"
summary = "Doubles what it is given."
layers = ["Double"]
functions = ["double"]

[backends.cpu]
sources = ["package", "cpu"]

[backends.cuda]
sources = ["package", "triton"]
python-depends = ["triton"]
"""

LAYERS = '''
from torch import nn

from .kernels import TRAINS, double


class _Base(nn.Module):
    can_torch_compile = True

    def forward(self, x, *, times: int = 2):
        return double(x)


class Double(_Base):
    """Twice its input.

    Of any shape.
    """

    has_backward = TRAINS


class Unlisted(nn.Module):
    def forward(self, x):
        return x
'''


@pytest.fixture
def source_repository(tmp_path: Path) -> Path:
    """A layer repository in source form, whose code raises where it is imported."""
    root = tmp_path / "doubling"
    for name, text in {
        "kernel.toml": KERNEL_TOML,
        "package/__init__.py": "from . import layers\nraise RuntimeError('imported')\n",
        "package/layers.py": LAYERS,
        "cpu/kernels.py": 'TRAINS = True\n\ndef double(x, out=None):\n    """x + x."""\n    return x + x\n',
        "triton/kernels.py": "TRAINS = False\n\ndef double(x, out=None):\n    return x + x\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    return root


@pytest.fixture
def built_repository(source_repository: Path, tmp_path: Path) -> Path:
    """The same, built."""
    from kernels_hub.repository.build import build_repository

    build_repository(source_repository, tmp_path / "built")
    return tmp_path / "built"
