"""What works where nothing but Python and PyTorch is: no Linux-only modules, no /proc, no compiler, no Triton.

A process in which they are taken away imports every module, kernelizes a model, uses the Hub's client and the oracle. It
is what the pure wheel is for: macOS, Windows, ARM, slim containers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_hub import start_hub

TAKEN_AWAY = """
import importlib.abc, os, sys

GONE = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "triton"}

class NotHere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def no_proc(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

import torch  # with what it wants to know of the system
import tempfile, subprocess, shutil, asyncio, multiprocessing
for name in GONE:
    sys.modules.pop(name, None)
for name in ("memfd_create", "sched_getaffinity", "sched_setaffinity", "register_at_fork", "fork", "O_NOFOLLOW", "nice"):
    if hasattr(os, name):
        delattr(os, name)
sys.meta_path.insert(0, NotHere())
sys.addaudithook(no_proc)
try:
    import fcntl
    raise SystemExit("fcntl is here")
except ModuleNotFoundError:
    pass
try:
    open("/proc/self/stat")
    raise SystemExit("/proc is here")
except FileNotFoundError:
    pass
"""

IMPORTS = (
    TAKEN_AWAY
    + """
import importlib, pkgutil, kernels_hub

def all_of(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if found.name in SKIPPED or found.name in TRITON:
            continue
        module = importlib.import_module(found.name)
        yield found.name
        if found.ispkg:
            yield from all_of(module)

SKIPPED = {
    "kernels_hub.__main__", "kernels_hub.server.__main__",  # programs
    "kernels_hub.layers",  # repositories, which the loader imports
    "kernels_hub.transformers",  # changes transformers, which do not load here
}
TRITON = {  # device functions and what runs them: imported where there is Triton
    "kernels_hub.compiler.runtime.triton_functions",
    "kernels_hub.compiler.runtime.triton_interpreter",
}
import kernels_hub.compiler
names = [*all_of(kernels_hub), *all_of(kernels_hub.compiler)]
for name in kernels_hub.__all__:
    getattr(kernels_hub, name)
for name in kernels_hub.compiler._PUBLIC:
    getattr(kernels_hub.compiler, name)
print(len(names))
"""
)

WORKS = (
    TAKEN_AWAY
    + """
import numpy as np
from torch import nn
from kernels_hub import (
    LayerRepository, Mode, explain, get_kernel, kernelize, report, restore, use_kernel_forward_from_hub, use_kernel_mapping,
)
from kernels_hub.compiler import Graph, compile as compile_graph, evaluate, rewrite, verify
from kernels_hub.compiler.runtime.toolchain import find_compiler

assert find_compiler() is None
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64)).eval()
x = torch.randn(32, 64)
with torch.inference_mode():
    before = model(x)
    explain(model, mode=Mode.INFERENCE)
    kernelize(model, mode=Mode.INFERENCE, verify=(x,))
    torch.testing.assert_close(model(x), before)
    print(report(model))
    restore(model)
    assert torch.equal(model(x), before)

graph = Graph("double")
graph.output("y", graph.input("x", ("batch", 3)) * 2.0)
verify(graph)
ones = np.ones((2, 3), np.float32)
assert (evaluate(graph, {"x": ones})["y"] == 2).all()
assert (np.asarray(compile_graph(graph, "cpu")(ones)) == 2).all()

assert get_kernel("acme/scale", version=">=1,<2", backend="cpu", trust_remote_code=True).layers.Scale

@use_kernel_forward_from_hub("Scale")
class Scale(nn.Module):
    def forward(self, x):
        return x + x

layer = LayerRepository("acme/scale", layer_name="Scale", version="==1.0.0", trust_remote_code=True)
with use_kernel_mapping({"Scale": {"cpu": layer}}):
    scaled = kernelize(Scale(), mode=Mode.INFERENCE, device="cpu")
assert report(scaled).swapped[0].repository == "acme/scale" and torch.equal(scaled(x), x * 2)
print("works")
"""
)


def run(program: str, folder: Path, **settings: str) -> str:
    environment = {
        "PATH": "/nonexistent", "HOME": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **settings,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_can_be_imported(tmp_path: Path):
    assert int(run(IMPORTS, tmp_path)) > 400


def test_kernelize_the_client_and_the_oracle_work(tmp_path: Path):
    from tests.hub.publisher import publish_source, write_source

    with start_hub(tmp_path / "hub") as hub, pytest.MonkeyPatch.context() as patch:
        from tests.compiler.export.test_ten_minutes import _point_at

        hub.organisation("acme", "ada")
        _point_at(hub.endpoint, tmp_path / "own", patch)
        patch.setenv("HF_TOKEN", hub.token("ada"))
        publish_source(write_source(tmp_path / "scale"), "acme/scale", "1.0.0")
        printed = run(WORKS, tmp_path, HF_ENDPOINT=hub.endpoint, HF_HUB_DISABLE_XET="1")
    assert printed.endswith("works\n")
