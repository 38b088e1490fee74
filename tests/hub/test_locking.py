"""Locks, downloads and bundles over a real Hub, as a project uses them."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    IntegrityError,
    LockedLayerRepository,
    LockError,
    Mode,
    OfflineError,
    TrustError,
    get_locked_kernel,
    kernelize,
    load_kernel,
    report,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels_hub.hub import client
from kernels_hub.hub.bundle import read_bundle, write_bundle
from kernels_hub.hub.lock import read_dependencies, read_lock
from kernels_hub.hub.locked_kernels import Lock
from kernels_hub.hub.locking import make_lock, write_lock
from kernels_hub.hub.provision import parse_dependency, provision, wanted_kernels
from kernels_hub.repository.metadata import KernelDependency
from kernels_hub.repository.versions import VersionRequest
from tests.hub.place import Place
from tests.hub.small_kernels import put, write_variant
from tests.warm_process import run_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def ask(project: Path, **kernels: str) -> list[Any]:
    rows = "".join(f'"{repo}" = {wanted}\n' for repo, wanted in kernels.items())
    (project / "pyproject.toml").write_text(f"[tool.kernels-hub.dependencies]\n{rows}")
    return read_dependencies(project / "pyproject.toml")


def lock(project: Path, *asked: Any, upgrade: Any = ()) -> Lock:
    path = project / "kernels.lock"
    made = make_lock(asked, read_lock(path) if path.is_file() else None, upgrade)
    write_lock(made, path)
    return made


def cli(place: Place, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernels_hub", *map(str, arguments)],
        cwd=cwd, env={**place.environment(), "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_lock_pins_and_an_upgrade_moves(place: Place, project: Path) -> None:
    place.release("1.0.0", "old")
    asked = ask(project, **{place.repo(): '">=1"'})
    first = lock(project, *asked)
    text = (project / "kernels.lock").read_bytes()
    place.release("1.1.0", "new")
    client.forget()
    assert lock(project, *asked) == first
    assert (project / "kernels.lock").read_bytes() == text
    lockfile = project / "kernels.lock"
    assert get_locked_kernel(place.repo(), lockfile=lockfile).VALUE == "old"
    assert lock(project, *asked, upgrade={"org/other"}) == first
    assert lock(project, *asked, upgrade={place.repo()}).direct(place.repo()).ref == "v1.1.0"
    assert get_locked_kernel(place.repo(), lockfile=lockfile).VALUE == "new"


def test_a_lock_has_every_file_of_every_variant(place: Place, project: Path) -> None:
    import hashlib

    write_variant(place.scratch / "build" / "torch-cpu", "cpu", files={"sub/data.py": "X = 1"})
    write_variant(place.scratch / "build" / "torch-cuda", "cuda")
    put(place.api, place.repo(), place.scratch / "build", tag="v1.0.0", branch="v1")
    made = lock(project, *ask(project, **{place.repo(): "1"}))
    expected = {
        variant.name: {
            path.relative_to(variant).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(variant.rglob("*"))
            if path.is_file()
        }
        for variant in (place.scratch / "build").iterdir()
    }
    assert made.direct(place.repo()).variants == expected


def with_dependency(place: Place) -> None:
    base = write_variant(place.scratch / "base" / "torch-cpu", "base")
    put(place.api, place.repo("base"), base.parent, tag="v1.0.0", branch="v1")
    user = write_variant(
        place.scratch / "user" / "torch-cpu",
        "user",
        init=f"from kernels_hub import get_kernel_dep\nBASE = get_kernel_dep({place.repo('base')!r})\n",
        depends=(KernelDependency(place.repo("base"), version=1),),
    )
    put(place.api, place.repo("user"), user.parent, tag="v1.0.0", branch="v1")


def test_dependencies_are_locked_too(place: Place, project: Path) -> None:
    with_dependency(place)
    made = lock(project, *ask(project, **{place.repo("user"): "1"}))
    assert [(kernel.repo_id, kernel.direct) for kernel in made.kernels] == [
        (place.repo("user"), True),
        (place.repo("base"), False),
    ]
    moved = write_variant(place.scratch / "moved" / "torch-cpu", "moved")
    put(place.api, place.repo("base"), moved.parent, branch="v1")
    client.forget()
    module = get_locked_kernel(place.repo("user"), lockfile=project / "kernels.lock")
    assert module.BASE.VALUE == "base"  # not what the branch has become
    write_lock(Lock(tuple(k for k in made.kernels if k.direct)), project / "kernels.lock")
    client.forget()
    with pytest.raises(
        LockError, match=rf"does not lock {place.repo('base')}@v1, which {place.repo('user')}@v1"
    ):
        get_locked_kernel(place.repo("user"), lockfile=project / "kernels.lock")


def test_a_locked_layer_in_a_model(place: Place, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @use_kernel_forward_from_hub("Scale")
    class Scale(nn.Module):
        def forward(self, x):
            return x * 1.0

    place.release("1.0.0", 4)
    lock(project, *ask(project, **{place.repo(): '"~=1.0"'}))
    monkeypatch.chdir(project)
    model = nn.Sequential(Scale())
    mapping = {
        "Scale": {
            "cpu": LockedLayerRepository(place.repo(), layer_name="Scale", lockfile=project / "kernels.lock")
        }
    }
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 4.0))
    assert report(model).swapped[0].revision == "1.0.0"


def test_loading_never_downloads(place: Place, project: Path) -> None:
    place.release("1.0.0", "here")
    lock(project, *ask(project, **{place.repo(): "1"}))
    lockfile = project / "kernels.lock"
    shutil.rmtree(place.cache)
    seen = len(place.hub.requests())
    with pytest.raises(OfflineError, match="kernels-hub download"):
        load_kernel(place.repo(), lockfile=lockfile)
    assert len(place.hub.requests()) == seen
    provision(wanted_kernels((), lockfile))
    place.offline()
    assert load_kernel(place.repo(), lockfile=lockfile).VALUE == "here"


def test_any_flipped_byte_of_a_locked_kernel_is_noticed(place: Place, project: Path) -> None:
    """Before its code runs, whatever metadata.json says: the lock knows every file."""
    marker = project / "ran"
    init = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
    place.release("1.0.0", 1, init=init, files={"data.txt": "x" * 100}, digest=False)
    made = lock(project, *ask(project, **{place.repo(): "1"})).direct(place.repo())
    lockfile = project / "kernels.lock"
    provision([made])
    folder = (
        place.cache
        / f"kernels--{place.organisation}--small"
        / "snapshots"
        / made.commit
        / "build"
        / "torch-cpu"
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 4
    random_ = random.Random(1)
    for number in range(40):
        path = files[number % len(files)].resolve()
        good = path.read_bytes()
        bad = bytearray(good)
        bad[random_.randrange(len(bad))] ^= 1 << random_.randrange(8)
        path.write_bytes(bad)
        client.forget()
        with pytest.raises(IntegrityError):
            load_kernel(place.repo(), lockfile=lockfile)
        path.write_bytes(good)
    assert not marker.exists()
    (folder / "sneaked.py").write_text("raise SystemError")
    client.forget()
    module = load_kernel(place.repo(), lockfile=lockfile)
    assert marker.exists()
    with pytest.raises(ImportError):  # what the lock does not list is not part of the kernel
        __import__(f"{module.__name__}.sneaked")


def test_a_hub_that_serves_other_content_for_a_locked_commit(place: Place, project: Path) -> None:
    place.release("1.0.0", "true")
    made = lock(project, *ask(project, **{place.repo(): "1"}))
    text = made.to_json()
    sha256 = made.direct(place.repo()).variants["torch-cpu"]["layers.py"]
    (project / "kernels.lock").write_text(text.replace(sha256, "0" * 64))
    shutil.rmtree(place.cache)
    with pytest.raises(IntegrityError, match=r"layers\.py has sha256"):
        get_locked_kernel(place.repo(), lockfile=project / "kernels.lock")


def test_the_peers_lock_pins_a_commit(place: Place, project: Path) -> None:
    place.release("1.0.0", "pinned")
    made = lock(project, *ask(project, **{place.repo(): "1"}))
    write_lock(made, project / "kernels.lock", for_peer=True)
    place.release("1.1.0", "newer")
    client.forget()
    with pytest.raises(TrustError):  # no digests, so it vouches for nothing
        get_locked_kernel(place.repo(), lockfile=project / "kernels.lock")
    module = get_locked_kernel(place.repo(), lockfile=project / "kernels.lock", trust_remote_code=True)
    assert module.VALUE == "pinned"


# -- commands ---------------------------------------------------------------------------------------


def test_the_commands_of_a_project(place: Place, project: Path) -> None:
    place.release("1.0.0", "cli")
    ask(project, **{place.repo(): '">=1,<2"'})
    missing = cli(place, "lock", "--check", cwd=project)
    assert missing.returncode == 1 and "no lock file" in missing.stderr
    locked = cli(place, "lock", "--json", cwd=project)
    assert locked.returncode == 0, locked.stderr
    assert json.loads(locked.stdout)["changes"][0]["after"].startswith("v1.0.0")
    assert cli(place, "lock", "--check", cwd=project).returncode == 0
    text = (project / "kernels.lock").read_text()
    (project / "kernels.lock").write_text("\0garbage")
    corrupt = cli(place, "lock", cwd=project)
    assert corrupt.returncode == 1 and "kernels-hub lock --upgrade-all" in corrupt.stderr
    assert cli(place, "lock", "--upgrade-all", cwd=project).returncode == 0  # what the message says works
    assert (project / "kernels.lock").read_text() == text
    unknown = cli(place, "lock", "--upgrade", "org/other", cwd=project)
    assert unknown.returncode == 1 and "does not ask for it" in unknown.stderr
    made = cli(place, "bundle", "-o", "carried.bundle", cwd=project)
    assert made.returncode == 0, made.stderr
    ask(project, **{place.repo(): "1"})
    stale = cli(place, "lock", "--check", cwd=project)
    assert stale.returncode == 1 and "out of date" in stale.stderr
    got = cli(place, "download", f"{place.repo()}@1", "--json", cwd=project)
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout)["kernels"][0]["variants"] == ["torch-cpu"]
    listed = cli(place, "variants", f"{place.repo()}@1.0.0", "--device", "cpu", cwd=project)
    assert listed.returncode == 0 and "torch-cpu" in listed.stdout, listed.stderr


def test_a_tag_that_moved_is_said(place: Place, project: Path) -> None:
    """The lock answers what the project asks for; but the release is another one by now, or gone."""
    commit = place.release("1.0.0", "first")
    ask(project, **{place.repo(): '"==1.0.0"'})
    assert cli(place, "lock", cwd=project).returncode == 0
    text = (project / "kernels.lock").read_text()
    for before, after, message in (
        (f'"commit": "{commit}"', f'"commit": "{"a" * 40}"', "tag v1.0.0 of .* moved"),
        ('"ref": "v1.0.0"', '"ref": "v1.0.1"', "tag v1.0.1 of .* is gone"),
    ):
        assert before in text
        (project / "kernels.lock").write_text(text.replace(before, after))
        moved = cli(place, "lock", "--check", cwd=project)
        assert moved.returncode == 1 and re.search(message, moved.stderr), moved
        assert "up to date" not in moved.stdout
    (project / "kernels.lock").write_text(text)
    assert cli(place, "lock", "--check", cwd=project).returncode == 0
    place.monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    unreachable = cli(place, "lock", "--check", cwd=project)
    assert unreachable.returncode == 0 and "last known of them: HF_HUB_OFFLINE" in unreachable.stderr


def test_an_air_gapped_machine(place: Place, project: Path, tmp_path: Path) -> None:
    """Online: lock and bundle. Elsewhere, with an empty cache and no Hub: unpack and load."""
    with_dependency(place)
    lock(project, *ask(project, **{place.repo("user"): "1"}))
    write_bundle(
        provision(wanted_kernels((), project / "kernels.lock"), all_variants=True), project / "kernels.bundle"
    )
    place.cache = tmp_path / "elsewhere"
    place.at("http://127.0.0.1:9")
    from huggingface_hub import constants

    place.monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place.cache))
    place.offline()
    read_bundle(project / "kernels.bundle", lock=read_lock(project / "kernels.lock"))
    module = get_locked_kernel(place.repo("user"), lockfile=project / "kernels.lock")
    assert (module.VALUE, module.BASE.VALUE) == ("user", "base")
    assert place.get("base", version=1).VALUE == "base"
    assert place.get("base", version="==1.0.0").VALUE == "base"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("org/x", VersionRequest()),
        ("org/x@1", VersionRequest(1)),
        ("org/x@>=1,<2", VersionRequest(">=1,<2")),
        ("org/x@1.2.0", VersionRequest(revision="v1.2.0")),
        ("org/x@v1.2.0", VersionRequest(revision="v1.2.0")),
        ("org/x@feature", VersionRequest(revision="feature")),
    ],
)
def test_kernels_on_a_command_line(text: str, wanted: VersionRequest) -> None:
    assert parse_dependency(text).wanted == wanted


# -- with Hugging Face's client -----------------------------------------------------------------------


def test_the_peer_loads_by_our_lock(place: Place, project: Path) -> None:
    pytest.importorskip("kernels", reason="needs the peer: pip install kernels")
    place.release(
        "1.0.0", "shared", variant="torch-cpu torch-cuda torch-rocm"
    )  # it takes what torch was built for
    made = lock(project, *ask(project, **{place.repo(): "1"}))
    write_lock(made, project / "kernels.lock", for_peer=True)
    trusted = (
        "import kernels, pathlib\n"
        f"kernel = kernels.get_locked_kernel({place.repo()!r}, lockfile=pathlib.Path('kernels.lock'), trust_remote_code=True)\n"
        "print(kernel.VALUE)\n"
    )
    result = run_script(trusted, env=place.environment(), cwd=project, timeout=120)
    assert result.stdout == "shared\n", result.stderr


def test_the_peer_finds_offline_what_our_client_fetched(place: Place, project: Path) -> None:
    pytest.importorskip("kernels", reason="needs the peer: pip install kernels")
    place.release("1.0.0", "shared")
    place.get(version=">=1")
    program = f"import kernels\nprint(kernels.get_kernel({place.repo()!r}, version=1, backend='cpu').VALUE)\n"
    result = run_script(program, env={**place.environment(), "HF_HUB_OFFLINE": "1"}, cwd=project, timeout=120)
    assert result.stdout == "shared\n", result.stderr
