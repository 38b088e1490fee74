"""README.md: its size, its links, and its examples, run as they are printed, in a process and on a Hub of their own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import picture
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.test_docs import blocks
from tests.running_hub import start_hub

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEXT = "-- next block --"

MODEL = """
import onnx
onnx.save(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
small (float[batch, 4] x) => (float[batch, 2] y) <float[4, 2] w = {1, 0, 0, 1, 1, 1, 0, 0}> {
    h = MatMul(x, w)
    y = Relu(h)
}'''), "model.onnx")
"""

WHAT_WAS_PROMISED = """
from kernels_hub import use_kernel_forward_from_hub

@use_kernel_forward_from_hub("SquaredReLU")
class SquaredReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** 2

tagged = kernelize(SquaredReLU(), mode=Mode.INFERENCE, device="cpu")
torch.testing.assert_close(tagged(x), torch.relu(x) ** 2)
print(report(tagged).swapped[0].repository, y.shape)
"""


def test_it_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 110] == []


def test_it_names_the_two_commands():
    assert {"make demo", "make test"} <= set(re.findall(r"^ +(make \w+)", README, re.MULTILINE))


def test_its_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", README)
    targets = [one or other for one, other in links]
    assert len(targets) > 15
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_picture_is_drawn_from_the_committed_results():
    for name, svg in picture.pictures().items():
        assert (picture.ASSETS / name).read_text(encoding="utf-8") == svg, "python -m benchmarks.picture"


def test_a_picture_of_two_machines_is_refused():
    other = picture.Shown("x", "", "2026-11-21-cpu-models.json", "models", "vit")
    with pytest.raises(ValueError, match="one machine"):
        picture.machine((*picture.SHOWN, other))


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_every_example_runs_and_prints_what_it_says(tmp_path: Path):
    page = blocks(README)
    script = MODEL + f"print({NEXT!r})\n".join(block.text for block in page if block.kind == "python")
    (tmp_path / "readme.py").write_text(script + WHAT_WAS_PROMISED, encoding="utf-8")
    with start_hub(tmp_path / "hub") as hub:
        hub.organisation("my-org", "ada")
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": hub.token("ada"),
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "KERNELS_HUB_CALIBRATION": "ignore",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        for block in page:
            if block.kind == "console":
                for line in block.text.splitlines():
                    program, *arguments = shlex.split(line.removeprefix("$ "))
                    assert program == "kernels-hub"
                    run([sys.executable, "-m", program.replace("-", "_"), *arguments], tmp_path, environment)
        printed = run([sys.executable, "readme.py"], tmp_path, environment).split(f"{NEXT}\n")
    (expected,) = (block.text for block in page if block.kind == "text")
    assert printed[0] == expected
    assert printed[-1].splitlines()[-1] == "my-org/my-kernels torch.Size([8, 2])"
    assert (tmp_path / "model.khplan").stat().st_size
