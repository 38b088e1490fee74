"""kernels.lock as a file: what it says, where it is found, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.errors import LockError
from kernels_hub.hub.caller import Caller, find_caller
from kernels_hub.hub.lock import find_lock, parse_lock, read_dependencies, read_lock
from kernels_hub.hub.locked_kernels import Dependency, Lock, LockedKernel
from kernels_hub.hub.locking import changes, check_lock, write_lock
from kernels_hub.repository.versions import VersionRequest

A, B = "a" * 40, "b" * 40
SHA = "0" * 64


def kernel(
    repo_id: str = "org/one", wanted: VersionRequest = VersionRequest(">=1"), **values: object
) -> LockedKernel:
    base = LockedKernel(repo_id, "kernel", wanted, "v1.2.0", A, True, {"torch-cpu": {"__init__.py": SHA}})
    return replace(base, **values)


LOCK = Lock(
    (
        kernel(depends=(Dependency("org/two", VersionRequest(1)),)),
        kernel("org/two", VersionRequest(1), ref="v1", commit=B, direct=False),
        kernel("org/three", VersionRequest(revision="main"), repo_type="model", ref="main"),
    )
)


def test_a_lock_survives_its_own_text(tmp_path: Path) -> None:
    write_lock(LOCK, tmp_path / "kernels.lock")
    again = read_lock(tmp_path / "kernels.lock")
    assert set(again.kernels) == set(LOCK.kernels)
    assert again.to_json() == LOCK.to_json() == Lock(LOCK.kernels[::-1]).to_json()
    assert again.direct("org/one").depends == (Dependency("org/two", VersionRequest(1)),)
    assert again.find(Dependency("org/two", VersionRequest(1))) == LOCK.kernels[1]
    assert again.find(Dependency("org/two", VersionRequest(2))) is None
    assert [file.path for file in again.direct("org/one").tree().variant("torch-cpu")] == [
        "build/torch-cpu/__init__.py"
    ]


def test_a_lock_that_pins_something_else_says_what_it_pins() -> None:
    for repo_id in ("org/none", "org/two"):
        with pytest.raises(LockError, match=r"does not lock org/.*it locks org/one, org/three"):
            LOCK.direct(repo_id)


def test_the_peer_reads_its_format() -> None:
    peer = pytest.importorskip("kernels._rust", reason="needs the peer: pip install kernels")
    theirs = peer.KernelLocks.from_json(LOCK.to_peer_json())
    assert len(theirs) == 3
    by_version = peer.KernelDependency(repo_id="org/two", version=peer.KernelVersion.Version(1))
    assert theirs[by_version].commit == B
    by_tag = peer.KernelDependency(repo_id="org/one", version=peer.KernelVersion.Revision("v1.2.0"))
    assert theirs[by_tag].commit == A
    ours = parse_lock(theirs.to_json())
    assert ours.direct("org/two").commit == B
    assert ours.direct("org/two").wanted == VersionRequest(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no lock file: Input data was truncated"),
        ("{", "no lock file: Input data was truncated"),
        ("3", "no lock file"),
        ("{}", "missing required field `format`"),
        ('{"format": 9, "kernels": []}', "format 9"),
        ('{"format": 1, "kernels": [{}]}', "missing required field `repository`"),
        (LOCK.to_json().replace(A, "abc"), r"length >= 40 - at `\$\.kernels\[0\]\.commit`"),
        (LOCK.to_json().replace(SHA, "abc"), r"length >= 64 - at .*variants"),
        (LOCK.to_json().replace('">=1"', '"one"'), "not a specifier"),
        (
            '[{"dependency": {"repo-id": "a/b", "version": 1}, "lock": {"commit": "x"}}]',
            r"length >= 40 - at `\$\[0\]\.lock\.commit`",
        ),
    ],
)
def test_what_is_no_lock(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.lock"
    path.write_text(text)
    with pytest.raises(LockError, match=message) as caught:
        read_lock(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
def test_no_text_is_read_as_something_else(text: str) -> None:
    try:
        lock = parse_lock(text)
    except LockError:
        return
    assert lock.kernels == ()


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="kernels-hub lock"):
        read_lock(tmp_path / "kernels.lock")


# -- pyproject.toml ---------------------------------------------------------------------------------


def project(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(textwrap.dedent(text))
    return path


def test_dependencies_of_a_project(tmp_path: Path) -> None:
    path = project(
        tmp_path,
        """
        [tool.kernels-hub.dependencies]
        "org/two" = ">=1.2,<2"
        "org/one" = 1
        "org/three" = { revision = "main", type = "model" }
        [tool.kernels.dependencies]
        "org/one" = 1
        "org/four" = 2
        """,
    )
    assert read_dependencies(path) == [
        Dependency("org/four", VersionRequest(2)),
        Dependency("org/one", VersionRequest(1)),
        Dependency("org/three", VersionRequest(revision="main"), "model"),
        Dependency("org/two", VersionRequest(">=1.2,<2")),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool", "not TOML"),
        ('[tool.kernels-hub]\ndependencies = "x"', "expected a table"),
        ('[tool.kernels-hub.dependencies]\n"org" = 1', "not of the form 'org/name'"),
        ('[tool.kernels-hub.dependencies]\n"a/b" = "1.2"', "not a specifier"),
        ('[tool.kernels-hub.dependencies]\n"a/b" = {sha = "x"}', "unknown key 'sha'"),
        ('[tool.kernels-hub.dependencies]\n"a/b" = {version = 1, type = "space"}', "'kernel' or 'model'"),
        (
            '[tool.kernels-hub.dependencies]\n"a/b" = 1\n[tool.kernels.dependencies]\n"a/b" = 2',
            "asked for twice",
        ),
    ],
)
def test_a_project_that_asks_for_nonsense(text: str, message: str, tmp_path: Path) -> None:
    path = project(tmp_path, text)
    with pytest.raises(LockError, match=message) as caught:
        read_dependencies(path)
    assert str(path) in str(caught.value)


def test_a_lock_that_is_out_of_date() -> None:
    asked = [
        Dependency("org/one", VersionRequest(">=1")),
        Dependency("org/three", VersionRequest(revision="main")),
    ]
    check_lock(LOCK, asked)
    with pytest.raises(LockError, match=r"org/four@v1 is asked for, but not locked"):
        check_lock(LOCK, [*asked, Dependency("org/four", VersionRequest(1))])
    with pytest.raises(LockError, match=r"org/three@main is locked, but not asked for"):
        check_lock(LOCK, asked[:1])
    with pytest.raises(LockError, match=r"org/two@v1 is depended on, but not locked"):
        check_lock(Lock((LOCK.kernels[0], LOCK.kernels[2])), asked)


def test_changes_between_locks() -> None:
    newer = Lock((replace(LOCK.kernels[0], ref="v1.3.0", commit=B), *LOCK.kernels[2:]))
    assert [str(change) for change in changes(LOCK, newer)] == [
        f"org/one >=1: v1.2.0 ({A[:12]}) -> v1.3.0 ({B[:12]})",
        f"org/two@v1: v1 ({B[:12]}) -> no longer locked",
    ]
    assert changes(LOCK, LOCK) == []
    assert len(changes(None, LOCK)) == 3


# -- finding ----------------------------------------------------------------------------------------


def test_the_lock_beside_the_callers_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "project" / "src" / "package"
    package.mkdir(parents=True)
    caller = Caller("package.module", package / "module.py")
    write_lock(LOCK, tmp_path / "kernels.lock")  # of the working folder: only the last resort
    assert find_lock(caller).where == str(tmp_path / "kernels.lock")
    (tmp_path / "project" / "pyproject.toml").write_text("")
    write_lock(LOCK, tmp_path / "project" / "kernels.lock")
    assert find_lock(caller).where == str(tmp_path / "project" / "kernels.lock")
    write_lock(LOCK, package / "kernels.lock")
    assert find_lock(caller).where == str(package / "kernels.lock")


def test_a_project_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match=r"no kernels\.lock for some\.module"):
        find_lock(Caller("some.module", tmp_path / "module.py"))


def test_the_lock_inside_an_installed_distribution(tmp_path: Path) -> None:
    """A wheel carries its lock as metadata; the code in it finds that, wherever it is started."""
    site = tmp_path / "site-packages"
    (site / "wheeled").mkdir(parents=True)
    (site / "wheeled" / "__init__.py").write_text(
        "from kernels_hub import LockedLayerRepository\n"
        "from kernels_hub.hub.lock import find_lock\n"
        "REFERENCE = LockedLayerRepository('org/one', layer_name='L')\n"
        "def where():\n    return find_lock(REFERENCE._caller).where\n"
    )
    info = site / "wheeled_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wheeled-dist\nVersion: 1.0\n")
    (info / "RECORD").write_text("wheeled/__init__.py,,\nwheeled_dist-1.0.dist-info/kernels.lock,,\n")
    (info / "kernels.lock").write_text(LOCK.to_json())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pyproject.toml").write_text("")
    program = f"import sys; sys.path.insert(0, {str(site)!r}); import wheeled; print(wheeled.where())"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "kernels.lock of the installed distribution wheeled-dist"


def test_the_caller_is_the_first_outside_of_the_library() -> None:
    assert find_caller() == Caller(__name__, Path(__file__))


def test_setuptools_takes_the_lock_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels_hub.hub.lock import write_egg_lockfile

    written: list[tuple[str, str, str | None]] = []

    class Command:
        def write_or_delete_file(self, what: str, filename: str, data: str | None) -> None:
            written.append((what, filename, data))

    monkeypatch.chdir(tmp_path)
    write_egg_lockfile(Command(), "kernels.lock", "x.egg-info/kernels.lock")
    project(tmp_path, "")
    write_egg_lockfile(Command(), "kernels.lock", "x.egg-info/kernels.lock")
    assert written == []  # a project without kernels is none of ours
    project(tmp_path, '[tool.kernels-hub.dependencies]\n"org/one" = ">=1"\n')
    (tmp_path / "kernels.lock").write_text(json.dumps([]))
    write_egg_lockfile(Command(), "kernels.lock", "x.egg-info/kernels.lock")
    assert written == [("kernels.lock", "x.egg-info/kernels.lock", "[]")]
