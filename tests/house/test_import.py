"""`import kernels_hub` is cheap and has no side effects: looked at in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "huggingface_hub",
    "kernels",
    "numpy",
    "onnx",
    "requests",
    "rich",
    "torch",
    "transformers",
    "triton",
    "typer",
}


def _imported_by(code: str) -> set[str]:
    """Top-level modules that a fresh process holds after running code."""
    script = (
        f"{code}\nimport json, sys\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import kernels_hub",
        "from kernels_hub import Mode, Device, KernelsHubError; Mode.INFERENCE | Mode.TORCH_COMPILE",
        "from kernels_hub import use_kernel_forward_from_hub",
        "import kernels_hub; dir(kernels_hub)",
        "import kernels_hub.cli",
    ],
)
def test_nothing_heavy_is_imported(code: str):
    assert _imported_by(code) & HEAVY == set()


def test_a_layer_of_a_folder_needs_no_client_of_a_hub(tmp_path: Path):
    folder = tmp_path / "build" / "torch-universal"
    (folder / "layers").mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import layers\n", encoding="utf-8")
    (folder / "layers" / "__init__.py").write_text(
        "from torch import nn\nclass Own(nn.Module):\n    def forward(self, x): return x\n", encoding="utf-8"
    )
    (folder / "metadata.json").write_text('{"name": "own", "version": 1}', encoding="utf-8")
    script = (
        "import sys\nfrom kernels_hub import LocalLayerRepository\n"
        f"print(LocalLayerRepository({str(tmp_path)!r}, layer_name='Own').load().__name__)\n"
        "print(sorted(name for name in sys.modules if name in ('kernels_hub.hub.client', 'kernels_hub.trust')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Own", "[]"]


def test_the_check_sees_what_is_imported():
    assert "numpy" in _imported_by("import numpy")


def test_the_command_line_answers_without_torch():
    code = "import kernels_hub.cli\ntry:\n    kernels_hub.cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert not {"torch", "triton", "transformers", "numpy"} & _imported_by(code)


def test_no_logging_is_configured_and_nothing_is_printed():
    code = (
        "import logging, sys, warnings, kernels_hub\n"
        "from kernels_hub import *\n"
        "assert logging.getLogger().handlers == []\n"
        "assert logging.getLogger().level == logging.WARNING\n"
        "assert all(type(h).__name__ == 'NullHandler' for h in logging.getLogger('kernels_hub').handlers)\n"
        "assert logging.getLogger('kernels_hub').level == logging.NOTSET\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
