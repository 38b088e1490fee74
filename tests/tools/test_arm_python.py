"""The wheel for ARM in a Python for ARM with PyTorch's wheel for ARM, in an emulator.

KERNELS_HUB_TEST_ARM_ROOT names a folder with usr/bin/python3.*, its libraries, and packages/, where PyTorch and what
kernels-hub[onnx] needs are unpacked. On Debian 12 it is made so, with Debian's packages for arm64 (`dpkg
--add-architecture arm64; apt-get update`) and wheels for every platform tag of aarch64 up to the C library of the root:

    apt-get download {python3.11,python3.11-minimal,libpython3.11-stdlib,libpython3.11-minimal,libc6,libssl3}:arm64 …
    dpkg -x EACH.deb ROOT
    pip download --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_aarch64 … torch==…
    unzip EACH.whl -d ROOT/packages

PyTorch for ARM from PyPI is built with CUDA: its loader asks for the libraries of the nvidia-* wheels that it requires
(4.5 GB unpacked), though no GPU is there. QEMU 7.2 shows programs the /proc/cpuinfo of the machine that it runs on, on
which oneDNN's processor detection ends `import torch` by a segmentation fault; a file ROOT/proc/cpuinfo is what they
read then, and the test writes one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tools.wheels import __main__ as wheels
from tools.wheels import native

SETTING = "KERNELS_HUB_TEST_ARM_ROOT"
PROCESSOR = "neoverse-n1"  # without bfloat16
CPUINFO = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
TIMEOUT = 1800
"""Seconds, of which a machine of two cores takes about 150."""


def _missing() -> str:
    if SETTING not in os.environ:
        return f"needs {SETTING}: a folder with Python and PyTorch for ARM"
    if shutil.which("qemu-aarch64") is None:
        return "needs qemu-aarch64 (Debian's qemu-user)"
    return "" if importlib.util.find_spec("ziglang") else "needs ziglang (extra wheels)"


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(_missing()), reason=_missing() or "it is here")
def test_the_wheel_serves_a_python_for_arm(tmp_path: Path):
    root = Path(os.environ[SETTING]).resolve()
    (python,) = root.glob("usr/bin/python3.[0-9]*")
    if not (cpuinfo := root / "proc" / "cpuinfo").exists():
        cpuinfo.parent.mkdir(exist_ok=True)
        cpuinfo.write_text(CPUINFO)
    native.build(native.units_of(native.ROOT), native.AARCH64, tmp_path / "native")
    (tmp_path / "pure").mkdir()
    pure = wheels.build_pure(native.ROOT, tmp_path / "pure")
    wheel = wheels.finish(pure, tmp_path / "native", native.AARCH64, tmp_path)[-1]
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    session = Path(__file__).with_name("arm_session.py")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            ["qemu-aarch64", "-cpu", PROCESSOR, "-L", str(root), str(python), *arguments],
            capture_output=True, text=True, check=False, timeout=TIMEOUT, cwd=tmp_path,
            env={
                "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "2",
                "PYTHONPATH": f"{tmp_path / 'installed'}:{root / 'packages'}",
                "KERNELS_HUB_CXX": "none", "KERNELS_HUB_CALIBRATION": "ignore",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    steps = {row["step"]: row for row in map(json.loads, run(str(session), str(tmp_path)).splitlines())}
    assert (steps["machine"]["machine"], steps["machine"]["level"]) == ("aarch64", "neon")
    assert {row.split(":")[0] for row in steps["default"]["swapped"]} >= {"Linear", "GELU"}
    assert any(row.endswith("/bytecode") for row in steps["compiled"]["swapped"]), steps["compiled"]["rows"]
    for name, most in (("default", 1e-5), ("compiled", 1e-5), ("module", 1e-6), ("ONNX", 1e-5)):
        assert steps[name]["error"] <= most, steps[name]
    assert steps["module"]["engines"] == steps["ONNX"]["engines"] == ["bytecode"]
