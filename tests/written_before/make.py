"""Writes a folder with one small file of every format that this version writes.

    python -m tests.written_before.make 2026-11

writes tests/written_before/2026-11/, which must not exist yet. Run it before a format changes, and commit the
folder: `test_written_before.py` loads every such folder with every later version. A folder is never made again.

    source_layer      a layer repository written by hand, built and signed
    exported_layer    an exported layer: C++ source, compiled C++, Triton, gradients; built
    exported_model    an exported ONNX file with its weights; built
    hub               the root of a Hub: users, tokens, an organisation, releases, a large file
    layer_store       what JIT compilation keeps of one layer
    tuning            a tuning database of one graph
    keys              a private key
    kernels.lock  kernels.bundle  trust.toml  mlp.khplan
    expected.json     inputs are of `models.py`; results, and names that tests need

    python -m tests.written_before.make bytecode

writes bytecode_<format>.tar.xz, an exported layer whose bytecode and module guard are of the format of now. To be run
before a format of bytecode changes, as the test of formats asks for another number.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from tests.running_hub import RunningHub, start_hub
from tests.written_before.models import NormedMLP, normed_mlp, write_onnx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ORGANISATION, LAYER, MODEL = "makers", "makers/scale", "makers/weights"
FACTOR = 2.5
LARGE = bytes(range(256)) * 64

MANIFEST = """\
[kernel]
name = "scale"
version = "1.2.0"
license = "MIT"
summary = "Multiplies by a number."
layers = ["Scale"]
dtypes = ["float32"]

[backends.cpu]
sources = ["package"]
"""
LAYERS = f"""\
from torch import nn


class Scale(nn.Module):
    has_backward = True

    def forward(self, x):
        return x * {FACTOR}
"""
STORE = """
import torch
from kernels_hub import CompiledLayer, Mode, kernelize, replace_kernel_forward_from_hub, report, use_kernel_mapping
from tests.written_before.models import NormedMLP, normed_mlp

replace_kernel_forward_from_hub(NormedMLP, "NormedMLP")
module, x = normed_mlp()
model = torch.nn.Sequential(module)
with use_kernel_mapping({"NormedMLP": {"cpu": CompiledLayer("NormedMLP")}}, inherit_mapping=False):
    kernelize(model, mode=Mode.INFERENCE)
with torch.inference_mode():
    model(x)
assert report(model).swapped, report(model)
"""


def make(folder: Path) -> None:
    """Fill a new folder."""
    from kernels_hub import __version__

    folder.mkdir()
    # Traces name the file of each forward; where it lies on this machine is nobody's business.
    forward: Any = NormedMLP.forward
    forward.__code__ = forward.__code__.replace(co_filename="models.py")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_CACHE": str(work / "cache"),
            "XDG_CONFIG_HOME": str(work / "config"),
            "KERNELS_HUB_CACHE": str(work / "kernels_hub"),
            "KERNELS_HUB_BACKEND": "cpu",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        os.environ.update(environment)
        module, x = normed_mlp()
        with torch.no_grad():
            result = module(x).tolist()
        expected = {"version": __version__, "torch": torch.__version__, "factor": FACTOR, "mlp": result}
        expected |= _hub(folder, work, environment)
        _exported(folder, work, environment)
        expected |= _compiled(folder, work)
        run_process([sys.executable, "-c", STORE], environment, work)
        _drop(work / "kernels_hub" / "layers", ".locks")
        pack(work / "kernels_hub" / "layers", folder / "layer_store.tar.xz")
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def _hub(folder: Path, work: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What takes a Hub: its root, a signed release, lock, bundle, trust policy, key."""
    source, project, root = work / "scale", work / "project", work / "hub"
    (source / "package").mkdir(parents=True)
    (source / "kernel.toml").write_text(MANIFEST)
    (source / "package" / "__init__.py").write_text("from . import layers\n")
    (source / "package" / "layers.py").write_text(LAYERS)
    project.mkdir()
    (project / "pyproject.toml").write_text(f'[tool.kernels-hub.dependencies]\n"{LAYER}" = ">=1,<2"\n')
    public = command(environment, work, "key", "new", "maker").strip()
    command(environment, work, "build", "scale")
    with start_hub(root) as hub:
        hub.organisation(ORGANISATION, "ada", trusted=True)
        token = hub.token("ada")
        at_hub = environment | {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token}
        command(at_hub, work, "publish", source, "--repo", LAYER, "--sign", "maker")
        _upload(hub, token)
        command(at_hub, project, "lock", ".")
        command(at_hub, project, "download", "--all-variants")
        command(at_hub, project, "bundle", "-o", "kernels.bundle")
    for place in ("lock", "incoming", "multipart", "locks"):
        _drop(root, place)
    pack(root, folder / "hub.tar.xz")
    pack(source, folder / "source_layer.tar.xz")
    shutil.copyfile(project / "kernels.lock", folder / "kernels.lock")
    shutil.copyfile(project / "kernels.bundle", folder / "kernels.bundle")
    for rule in (
        ("trust", "add", "maker", "--for", f"{ORGANISATION}/*"),
        ("trust", "allow", "friends/fast"),
        ("trust", "deny", "strangers/*"),
        ("trust", "set", "publisher", "off"),
    ):
        command(environment, work, *rule)
    config = work / "config" / "kernels_hub"
    shutil.copyfile(config / "trust.toml", folder / "trust.toml")
    pack(config / "keys", folder / "keys.tar.xz")
    return {"public_key": public, "token": token}


def _upload(hub: RunningHub, token: str) -> None:
    """A model repository with a small file and one that is kept beside git."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(hub.endpoint, token=token)
    api.create_repo(MODEL)
    attributes = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"
    for files in ({".gitattributes": attributes}, {"small.txt": b"small", "large.bin": LARGE}):
        operations = [CommitOperationAdd(path, content) for path, content in files.items()]
        api.create_commit(MODEL, operations, commit_message="put")
    api.create_tag(MODEL, tag="v1.0.0")


def _exported(folder: Path, work: Path, environment: dict[str, str]) -> None:
    """An exported module, and an exported ONNX file."""
    from kernels_hub.compiler import emit_layer

    module, x = normed_mlp()
    rows = {"x": {0: Dim("rows")}}
    options: dict[str, Any] = {"layer_name": "NormedMLP", "benchmark": False}
    emit_layer(
        (module, (x,)),
        out=work / "exported_layer",
        dynamic_shapes=rows,
        prebuilt=True,
        name="normed-mlp",
        **options,
    )
    write_onnx(work / "mlp.onnx")
    emit_layer(work / "mlp.onnx", out=work / "exported_model", name="mlp-model", **options)
    for name in ("exported_layer", "exported_model"):
        command(environment, work, "build", name)
        pack(work / name, folder / f"{name}.tar.xz")


def make_bytecode() -> None:
    """Write an exported layer for a machine without a compiler, whose interpreter is another version's."""
    from kernels_hub.compiler import emit_layer
    from kernels_hub.compiler.runtime.bytecode import FORMAT
    from kernels_hub.repository.build import build_repository

    target = HERE / f"bytecode_{FORMAT}.tar.xz"
    if target.exists():
        raise SystemExit(f"{target} is there, and is never made again")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        module, x = normed_mlp()
        emit_layer(
            (module, (x,)), layer_name="NormedMLP", out=work / "source", dynamic_shapes={"x": {0: Dim("rows")}},
            triton=False, benchmark=False,
        )  # fmt: skip
        build_repository(work / "source", work / "built")
        pack(work / "built", target)


def _compiled(folder: Path, work: Path) -> dict[str, Any]:
    """A saved executable, and what tuning remembers."""
    from kernels_hub.compiler import compile as compile_graph

    module, x = normed_mlp()
    run = compile_graph((module, (x,)), "cpu", dims={"x": {0: Dim("rows")}})
    run(x)
    run.save(folder / "mlp.khplan")
    tuned = compile_graph((module, (x,)), "cpu", heuristic="benchmark", cache=work / "tuning")
    tuned(x)
    pack(work / "tuning", folder / "tuning.tar.xz")
    return {"engines": list(run.plan.engines)}


def pack(folder: Path, target: Path) -> None:
    """A folder as an archive of which equal folders make equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" in path.parts:
                continue
            row = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            row.uid = row.gid = 0
            row.uname = row.gname = ""
            row.mtime = 0
            if row.isfile():
                with path.open("rb") as content:
                    archive.addfile(row, content)
            else:
                archive.addfile(row)
    target.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(source: Path, target: Path) -> Path:
    """The folder that an archive holds; private files stay private."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(source.read_bytes()))) as archive:
        archive.extractall(target, filter="data")
    return target


def command(environment: dict[str, str], cwd: Path, *arguments: str | Path) -> str:
    """What `kernels-hub ARGUMENTS` prints. Raises RuntimeError with its errors where it fails."""
    return run_process([sys.executable, "-m", "kernels_hub", *map(str, arguments)], environment, cwd)


def run_process(line: list[str], environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(line, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _drop(folder: Path, name: str) -> None:
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    make_bytecode() if sys.argv[1] == "bytecode" else make(HERE / sys.argv[1])
