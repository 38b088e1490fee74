"""An exported choice of kernels gives the same bits in every process, and for every number of threads.

Of sizes for which the kernels multiply themselves: PyTorch's own products give others on other numbers of threads.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import GainTable
from kernels_hub.calibration.kinds import rows_of, shapes
from tests.warm_process import run_script

PROCESS = """
import hashlib, sys, torch
from torch import nn
from kernels_hub import Mode, kernelize, report

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
parts = nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.RMSNorm(512)
model = kernelize(nn.Sequential(*parts).eval(), mode=Mode.INFERENCE, wait=True)
kept = [row.layer_name for row in report(model).rows if row.layer_name and not row.swapped]
digest = hashlib.sha256()
with torch.inference_mode():
    for rows in (1, 7, 64, 300):
        digest.update(model(torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows))).numpy().tobytes())
print(kept, digest.hexdigest())
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as `kernels-hub calibrate --export` writes it: linear layers and norms gain, GELU does not."""
    table = GainTable()
    for kind, ratio in (("Linear", 1.5), ("TorchRMSNorm", 1.2), ("GELU", 0.8)):
        for shape in shapes(kind, "float32"):
            for rows in rows_of(shape):
                table.put(shape, rows, ratio)
    path = tmp_path_factory.mktemp("exported") / "gains.json"
    database.write(path, database.Machine("unheard-of", 64, (("torch", "0"),)), table)
    return path


def _run(path: Path, threads: int) -> str:
    done = run_script(PROCESS, str(threads), env={**os.environ, "KERNELS_HUB_CALIBRATION": str(path)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_same_bits_in_other_processes_and_on_other_numbers_of_threads(exported: Path):
    said = [_run(exported, threads) for threads in (1, 2, 3)]
    assert len(set(said)) == 1, said
    assert said[0].startswith("['GELU'] "), "what the file says is what runs"
