"""Files that earlier versions wrote: each loads with the right numbers, or is refused with what to do about it.

Every folder beside this file was written by `make.py` with one version of the code, before a format could change.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    IntegrityError,
    LocalLayerRepository,
    Mode,
    get_local_kernel,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    use_kernel_mapping,
)
from kernels_hub.compiler import compile as compile_graph
from kernels_hub.compiler import load_executable
from kernels_hub.compiler.errors import PlanError
from kernels_hub.compiler.plan.tuning_database import TuningDatabase
from kernels_hub.compiler.runtime.bytecode import FORMAT
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.running_hub import RunningHub, start_hub
from tests.runtime_objects import share_runtime_objects
from tests.tolerances import assert_close
from tests.warm_process import run_script
from tests.wheel_interpreter import wheel_interpreter
from tests.written_before.make import LARGE, LAYER, MODEL, ORGANISATION, command, unpack
from tests.written_before.models import normed_mlp, wave

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = sorted(path.parent for path in HERE.glob("*/expected.json"))

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Written:
    """A folder of files that one version wrote, and room to unpack them in."""

    folder: Path
    expected: dict[str, Any]
    scratch: Path

    def unpacked(self, name: str) -> Path:
        """A copy of a kept folder."""
        return unpack(self.folder / f"{name}.tar.xz", self.scratch / name)

    @property
    def mlp(self) -> torch.Tensor:
        """What the MLP of `models` gave for its input when the folder was written."""
        return torch.tensor(self.expected["mlp"])

    def environment(self, **more: str) -> dict[str, str]:
        """Of commands: nothing of this user's, and this folder's trust policy and keys."""
        config = self.scratch / "config" / "kernels_hub"
        if not config.exists():
            config.mkdir(parents=True)
            shutil.copyfile(self.folder / "trust.toml", config / "trust.toml")
            (config / "trust.toml").chmod(0o644)
            unpack(self.folder / "keys.tar.xz", config / "keys")
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_CACHE": str(self.scratch / "cache"),
            "XDG_CONFIG_HOME": str(config.parent),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **more,
        }


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    expected = json.loads((request.param / "expected.json").read_text())
    return Written(request.param, expected, tmp_path)


def test_there_are_folders() -> None:
    assert FOLDERS


def test_folders_name_no_machine() -> None:
    """No path of whoever wrote them, in any file of any archive."""
    foreign = re.compile(rb"/(?:work|tmp|root|home|Users)/")
    found = []
    for path in sorted(one for folder in FOLDERS for one in folder.iterdir()):
        contents = [(path.name, path.read_bytes())]
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                files = [(one.name, archive.extractfile(one)) for one in archive]
                contents = [(name, file.read()) for name, file in files if file is not None]
        found += [f"{path.name}: {name}" for name, content in contents if foreign.search(content)]
    assert found == []


def test_the_formula_is_still_the_one_that_was_kept(written: Written) -> None:
    """Else the numbers below would compare the wrong thing."""
    module, x = normed_mlp()
    with torch.no_grad():
        assert_close(module(x), written.mlp)
        with pytest.raises(AssertionError):
            assert_close(module(x) * 1.001, written.mlp)


# -- layer repositories -----------------------------------------------------------------------------


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.0


def swapped(model: nn.Module, name: str, folder: Path, mode: Mode = Mode.INFERENCE) -> nn.Sequential:
    """The model in a Sequential, with the kernel of a folder and nothing to fall back to."""
    replace_kernel_forward_from_hub(type(model), name)
    outer = nn.Sequential(model)
    layer = LocalLayerRepository(folder, layer_name=name)
    with use_kernel_mapping({name: {"cpu": layer}}, inherit_mapping=False):
        kernelize(outer, mode=mode, device="cpu", use_fallback=False)
    assert len(report(outer).swapped) == 1
    return outer


def test_a_layer_repository(written: Written) -> None:
    x = wave(3, 5)
    model = swapped(Scale(), "Scale", written.unpacked("source_layer"))
    assert torch.equal(model(x), x * written.expected["factor"])


def test_a_source_layer_builds(written: Written) -> None:
    folder = written.unpacked("source_layer")
    before = (folder / "build/torch-cpu/layers.py").read_bytes()
    shutil.rmtree(folder / "build")
    command(written.environment(), written.scratch, "build", "source_layer")
    assert (folder / "build/torch-cpu/layers.py").read_bytes() == before


@needs_compiler
def test_an_exported_layer_built_from_its_source(written: Written) -> None:
    folder = written.unpacked("exported_layer")
    for variant in (folder / "build").iterdir():
        if variant.name != "torch-cpu":
            shutil.rmtree(variant)
    module, x = normed_mlp()
    model = swapped(module, "NormedMLP", folder)
    with torch.inference_mode():
        assert_close(model(x), written.mlp, factor=4)
        module.down.weight.zero_()
        module.down.bias.zero_()
        assert torch.equal(model(x), x), "weights are followed"


def test_an_exported_layer_with_its_native_code(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written.unpacked("exported_layer")
    (variant,) = (folder / "build").glob("torch-stable-abi*")
    rows = json.loads((variant / "native" / "prebuilt.json").read_text())
    assert rows, "there is native code"
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("needs x86-64 Linux, for which the code was compiled")
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(written.scratch / "compiled"))
    kernel = get_local_kernel(variant, backend="cpu")
    module, x = normed_mlp()
    with torch.inference_mode():
        assert_close(kernel.layers.NormedMLP.forward(module, x), written.mlp, factor=4)
    assert not kernel.program.LAYER.fallbacks
    assert not (written.scratch / "compiled").exists()


@needs_compiler
@pytest.mark.parametrize("archive", sorted(HERE.glob("bytecode_*.tar.xz")), ids=lambda one: one.name)
def test_bytecode_runs_by_the_interpreter_of_now(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the module guard that the layer brings along; or it is of another format, and that is said."""
    folder = unpack(archive, tmp_path / "layer")
    wheel = wheel_interpreter(tmp_path / "wheel")
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    kernel = get_local_kernel(folder, backend="cpu")
    module, x = normed_mlp()
    forward, layer = kernel.layers.NormedMLP.forward, kernel.program.LAYER
    with torch.no_grad():
        assert_close(forward(module, x), module(x), factor=4)
        module.down.weight.mul_(2)
        assert_close(forward(module, x), module(x), factor=4)
    if archive.name == f"bytecode_{FORMAT}.tar.xz":
        assert layer.engine == "bytecode" and not layer.fallbacks
        loss = forward(module.train(), x).square().sum()
        (found,) = torch.autograd.grad(loss, [module.down.weight])
        (expected,) = torch.autograd.grad(module(x).square().sum(), [module.down.weight])
        assert_close(found, expected, factor=8)
    else:
        assert "another format of bytecode" in layer.fallbacks["build"]


def test_there_is_bytecode_of_the_format_of_now() -> None:
    assert (HERE / f"bytecode_{FORMAT}.tar.xz").is_file(), "python -m tests.written_before.make bytecode"


@needs_compiler
def test_an_exported_layer_trains(written: Written) -> None:
    module, x = normed_mlp()
    reference, _ = normed_mlp()
    model = swapped(module.train(), "NormedMLP", written.unpacked("exported_layer"), Mode.TRAINING)
    for one in (model, reference):
        one(x).square().sum().backward()
    for (name, actual), expected in zip(module.named_parameters(), reference.parameters(), strict=True):
        assert actual.grad is not None and expected.grad is not None, name
        assert_close(actual.grad, expected.grad, factor=8)  # sums over rows, in another order


@needs_compiler
def test_an_exported_model_with_its_weights(written: Written) -> None:
    _, x = normed_mlp()
    folder = written.unpacked("exported_model")
    model = get_local_kernel(folder, backend="cpu").load()
    with torch.inference_mode():
        assert_close(model(x)["y"], written.mlp, factor=4)


@pytest.mark.parametrize("name", ["source_layer", "exported_layer", "exported_model"])
def test_digests_are_checked(written: Written, name: str) -> None:
    folder = written.unpacked(name)
    described = json.loads(command(written.environment(), written.scratch, "info", str(folder), "--json"))
    assert {row["digest"] for row in described["variants"]} == {"sha256"}
    layers = folder / "build" / "torch-cpu" / "layers.py"
    layers.write_text(layers.read_text() + "#\n")
    with pytest.raises(IntegrityError, match=r"layers\.py"):
        get_local_kernel(layers.parent, backend="cpu")


# -- signatures, keys, trust ------------------------------------------------------------------------


def test_a_signature(written: Written) -> None:
    folder = written.unpacked("source_layer")
    key = " ".join(written.expected["public_key"].split()[:1])
    environment = written.environment()
    options = ("--key", key, "--repo", LAYER, "--json")
    answer = json.loads(command(environment, written.scratch, "verify", str(folder), *options))
    (row,) = answer["variants"]
    assert (row["repository"], row["release"], row["problem"]) == (LAYER, "1.2.0", None)
    layers = folder / "build" / "torch-cpu" / "layers.py"
    layers.write_text(layers.read_text().replace("2.5", "3.5"))
    with pytest.raises(RuntimeError, match="REFUSED|problem"):
        command(environment, written.scratch, "verify", str(folder), *options)


def test_a_key_and_a_trust_policy(written: Written) -> None:
    environment = written.environment()
    public = written.expected["public_key"]
    assert command(environment, written.scratch, "key", "export", "maker").strip() == public
    names = [LAYER, "friends/fast", "strangers/slow", "others/some"]
    rows = json.loads(command(environment, written.scratch, "trust", "check", *names, "--json"))
    assert [row["verdict"] for row in rows] == ["admitted", "admitted", "refused", "refused"]
    assert rows[0]["signers"] == [public]


# -- a Hub and what was fetched from it -------------------------------------------------------------


@pytest.fixture
def hub(written: Written) -> Iterator[RunningHub]:
    """A server on a copy of the kept root."""
    with start_hub(written.unpacked("hub")) as running:
        yield running


def at_hub(written: Written, hub: RunningHub) -> dict[str, str]:
    return written.environment(HF_ENDPOINT=hub.endpoint, HF_TOKEN=written.expected["token"])


LOCKED = """
import sys
import torch
from kernels_hub import get_locked_kernel
kernel = get_locked_kernel("makers/scale", lockfile="kernels.lock")
print(kernel.layers.Scale().forward(torch.ones(1)).item())
"""


def loaded_factor(written: Written, project: Path, environment: dict[str, str]) -> float:
    """By what the locked layer multiplies, in a process of its own."""
    done = run_script(LOCKED, env=environment, cwd=project)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def project_with_lock(written: Written) -> Path:
    project = written.scratch / "project"
    project.mkdir()
    shutil.copyfile(written.folder / "kernels.lock", project / "kernels.lock")
    asked = f'[tool.kernels-hub.dependencies]\n"{LAYER}" = ">=1,<2"\n'
    (project / "pyproject.toml").write_text(asked)
    return project


@pytest.mark.slow
def test_a_hub_and_a_lock(written: Written, hub: RunningHub) -> None:
    from huggingface_hub import HfApi

    environment = at_hub(written, hub)
    api = HfApi(hub.endpoint, token=written.expected["token"])
    assert api.whoami()["name"] == "ada", "the token is known"
    large = api.hf_hub_download(MODEL, "large.bin", revision="v1.0.0", cache_dir=written.scratch / "files")
    assert Path(large).read_bytes() == LARGE
    small = api.hf_hub_download(MODEL, "small.txt", cache_dir=written.scratch / "files")
    assert Path(small).read_text() == "small"
    project = project_with_lock(written)
    lock = (project / "kernels.lock").read_bytes()
    command(environment, project, "lock", ".", "--check")
    command(environment, project, "lock", ".")
    assert (project / "kernels.lock").read_bytes() == lock
    versions = command(environment, project, "versions", LAYER, "--verify")
    assert "1.2.0" in versions
    command(environment, project, "download")
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    assert loaded_factor(written, project, offline) == written.expected["factor"]


def test_a_hub_takes_new_releases(written: Written, hub: RunningHub) -> None:
    environment = at_hub(written, hub)
    source = written.unpacked("source_layer")
    options = ("--repo", LAYER, "--version", "1.3.0", "--sign", "maker")
    command(environment, written.scratch, "publish", str(source), *options)
    versions = command(environment, written.scratch, "versions", LAYER, "--verify")
    assert "1.2.0" in versions and "1.3.0" in versions
    hub.stop()
    command(environment, written.scratch, "hub", "fsck", "--root", str(hub.root))


def test_a_bundle(written: Written) -> None:
    project = project_with_lock(written)
    bundle = written.folder / "kernels.bundle"
    environment = written.environment(HF_HUB_OFFLINE="1")
    command(environment, project, "download", "--from-bundle", str(bundle))
    assert loaded_factor(written, project, environment) == written.expected["factor"]


# -- what the compiler keeps ------------------------------------------------------------------------


def header_of(data: bytes) -> dict[str, Any]:
    """The header of a container, by its documentation: magic, format, length, digest, JSON."""
    length = int.from_bytes(data[12:16], "little")
    return json.loads(data[48 : 48 + length])


def test_a_saved_executable(written: Written) -> None:
    """Where it is for this version and this device; elsewhere it says for which it is, and what to do."""
    path = written.folder / "mlp.khplan"
    module, x = normed_mlp()
    compile_graph((module, (x,)), "cpu").save(written.scratch / "mine.khplan")
    made, now = header_of(path.read_bytes()), header_of((written.scratch / "mine.khplan").read_bytes())
    if all(made[name] == now[name] for name in ("versions", "device")):
        run = load_executable(path)
        assert list(run.plan.engines) == written.expected["engines"]
        assert_close(run(x), written.mlp, factor=4)
    else:
        with pytest.raises(PlanError, match=r"was made with .* this is|is for .* not for"):
            load_executable(path)


def test_a_tuning_database(written: Written) -> None:
    folder = written.unpacked("tuning")
    (path,) = folder.iterdir()
    row = json.loads(path.read_text())
    winner = TuningDatabase(folder).get(row["key"])
    assert winner is not None
    assert (winner.engine, winner.seconds) == (row["engine"], row["seconds"])
    assert TuningDatabase(folder).get({**row["key"], "device": ["cpu", "another", ""]}) is None


def test_a_tuning_database_beside_a_compilation(written: Written) -> None:
    """A call that reads and writes the folder leaves what was there."""
    folder = written.unpacked("tuning")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    module, x = normed_mlp()
    run = compile_graph((module, (x,)), "cpu", heuristic="benchmark", cache=folder)
    with torch.inference_mode():
        assert_close(run(x), written.mlp, factor=4)
    assert {name: (folder / name).read_bytes() for name in before} == before


STORED = """
import torch
from kernels_hub import CompiledLayer, Mode, kernelize, replace_kernel_forward_from_hub, report, use_kernel_mapping
from tests.tolerances import assert_close
from tests.written_before.models import NormedMLP, normed_mlp

replace_kernel_forward_from_hub(NormedMLP, "NormedMLP")
module, x = normed_mlp()
model = torch.nn.Sequential(module)
with torch.inference_mode():
    expected = module(x)
    with use_kernel_mapping({"NormedMLP": {"cpu": CompiledLayer("NormedMLP")}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    assert_close(model(x), expected, factor=4)
assert report(model).swapped, report(model)
"""


@pytest.mark.slow
@needs_compiler
def test_a_store_of_compiled_layers(written: Written) -> None:
    """Its entries load as repositories; a process that uses the store does not harm them."""
    cache = written.scratch / "cache"
    cache.mkdir()
    share_runtime_objects(cache)
    store = unpack(written.folder / "layer_store.tar.xz", cache / "layers")
    (call,) = (store / "calls").iterdir()
    entry = store / call.read_text()
    files = {path: path.read_bytes() for path in entry.rglob("*") if path.is_file()}
    environment = written.environment(KERNELS_HUB_CACHE=str(cache))
    done = run_script(STORED, env=environment, cwd=written.scratch)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in files} == files
    module, x = normed_mlp()
    model = swapped(module, "NormedMLP", entry)
    with torch.inference_mode():
        assert_close(model(x), written.mlp, factor=4)


# -- formats of later versions ----------------------------------------------------------------------


def test_a_later_lock_is_refused(written: Written) -> None:
    project = project_with_lock(written)
    lock = project / "kernels.lock"
    lock.write_text(lock.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(RuntimeError, match="format 99.*upgrade"):
        command(written.environment(HF_HUB_OFFLINE="1"), project, "download")


def test_a_later_bundle_is_refused(written: Written) -> None:
    bundle = written.scratch / "later.bundle"
    with tarfile.open(written.folder / "kernels.bundle") as before, io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as after:
            for row in before:
                file = before.extractfile(row)
                assert file is not None
                content = file.read().replace(b'"format": 1', b'"format": 99')
                row.size = len(content)
                after.addfile(row, io.BytesIO(content))
        bundle.write_bytes(gzip.compress(packed.getvalue()))
    with pytest.raises(RuntimeError, match="format 99.*upgrade"):
        command(written.environment(), written.scratch, "download", "--from-bundle", str(bundle))


def test_a_later_plan_is_refused(written: Written) -> None:
    data = bytearray((written.folder / "mlp.khplan").read_bytes())
    data[8:12] = (99).to_bytes(4, "little")
    with pytest.raises(PlanError, match=r"99.*compile the graph again|compile the graph again.*99"):
        load_executable(bytes(data))


def test_a_later_trust_policy_is_refused(written: Written) -> None:
    environment = written.environment()
    policy = Path(environment["XDG_CONFIG_HOME"]) / "kernels_hub" / "trust.toml"
    policy.write_text(policy.read_text().replace("schema = 1", "schema = 99"))
    with pytest.raises(RuntimeError, match=r"trust\.toml.*schema.*99"):
        command(environment, written.scratch, "trust", "check", f"{ORGANISATION}/scale")


def test_a_later_hub_is_refused(written: Written) -> None:
    root = written.unpacked("hub")
    marker = root / "FORMAT"
    marker.write_text(marker.read_text().replace("1", "99"))
    with pytest.raises(RuntimeError, match=r"another format, 99.*use the version"):
        command(written.environment(), written.scratch, "hub", "fsck", "--root", str(root))
