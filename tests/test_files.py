"""Files appear whole or not at all, and the cache lies where the environment says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_hub import files
from kernels_hub.files import (
    cache_folder,
    flush_folder,
    link_atomically,
    move_into_place,
    replacing,
    set_aside,
    write_atomically,
)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "one")
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o644

    def fail_half_way() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"one"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_durable_file_is_flushed_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, steps = tmp_path / "file", list[str]()
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    def noted_replace(
        new: Path, target: Path, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        steps.append("replaced")
        replace(new, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(path, b"x", durable=True)
    assert [one.startswith(".file.") or one for one in steps] == [True, "replaced", tmp_path.name]
    steps.clear()
    write_atomically(path, b"y")
    assert steps == ["replaced"]
    flush_folder(tmp_path)


def test_a_file_that_is_there_is_kept_where_it_shall_not_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_atomically(path, b"first", mode=0o600, overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"second", overwrite=False)
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_by_the_handle_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        folder.rename(tmp_path / "moved")
        with replacing(Path("file"), mode=0o640, dir_fd=handle) as file:
            file.write(b"one")
        assert link_atomically(Path("link"), "file", dir_fd=handle)
        with pytest.raises(FileExistsError), replacing(Path("file"), dir_fd=handle, overwrite=False) as file:
            file.write(b"two")
    finally:
        os.close(handle)
    assert not folder.exists()
    assert (tmp_path / "moved" / "link").read_bytes() == b"one"
    assert (tmp_path / "moved" / "file").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["file", "link"]


def test_a_link_takes_the_place_of_a_file_or_a_link_and_not_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "name"
    path.write_bytes(b"file")
    for target in ("a", "b"):
        assert link_atomically(path, target)
        assert os.readlink(path) == target
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        link_atomically(path, "c")
    assert [one.name for one in tmp_path.iterdir()] == ["name"]
    assert path.is_dir()


def folder_with(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def test_a_finished_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = tmp_path / "out" / "folder"
    path.parent.mkdir()
    for content in ("one", "two"):
        assert move_into_place(folder_with(scratch / "new", content), path, durable=True) == path
        assert (path / "file").read_text() == content
        assert [one.name for one in path.parent.iterdir()] == ["folder"]
    with pytest.raises(OSError, match="not empty"):
        move_into_place(folder_with(scratch / "new", "three"), path, overwrite=False)
    assert (path / "file").read_text() == "two"
    assert (scratch / "new" / "file").read_text() == "three"


def test_a_folder_that_cannot_be_replaced_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, new = folder_with(tmp_path / "folder", "one"), folder_with(tmp_path / "new", "two")
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self == new:
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(OSError, match="no"):
        move_into_place(new, path)
    assert (path / "file").read_text() == "one"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "new"]


def test_a_finished_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path, new = tmp_path / "file", tmp_path / "new"
    for content in (b"one", b"two"):
        new.write_bytes(content)
        move_into_place(new, path)
        assert path.read_bytes() == content
    new.write_bytes(b"three")
    with pytest.raises(FileExistsError):
        move_into_place(new, path, overwrite=False)
    assert path.read_bytes() == b"two"
    assert new.read_bytes() == b"three"


def test_what_is_set_aside_comes_back_after_an_error_only(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    names = ("file", "inner", "other")

    def write(content: str, *, fail: bool) -> None:
        with set_aside(folder, names):
            assert not any((folder / name).exists() for name in names)
            (folder / "file").write_text(content)
            folder_with(folder / "inner", content)
            if fail:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        write("none", fail=True)
    assert list(tmp_path.iterdir()) == []
    write("one", fail=False)
    (folder / "mine").write_text("mine")
    with pytest.raises(RuntimeError):
        write("two", fail=True)
    assert (folder / "file").read_text() == (folder / "inner" / "file").read_text() == "one"
    write("three", fail=False)
    assert (folder / "file").read_text() == (folder / "inner" / "file").read_text() == "three"
    assert (folder / "mine").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"KERNELS_HUB_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/tuning"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/kernels_hub/tuning"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/kernels_hub/tuning"),
        ({"HOME": "/c"}, "/c/.cache/kernels_hub/tuning"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KERNELS_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder("tuning")) == expected


def test_a_private_folder_is_gone_with_its_process_and_stays_for_its_forks() -> None:
    program = (
        "import os\n"
        "from kernels_hub.files import PrivateFolder\n"
        "private = PrivateFolder('test')\n"
        "assert private.made() == ()\n"
        "folder = private.get()\n"
        "assert private.get() == folder and private.made() == (folder,)\n"
        "assert folder.stat().st_mode & 0o777 == 0o700\n"
        "if not (child := os.fork()):\n"
        "    raise SystemExit\n"
        "os.waitpid(child, 0)\n"
        "assert folder.is_dir()\n"
        "print(folder)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).name.startswith("kernels_hub-test-")
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_private_folders_of_processes_that_were_killed_are_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from kernels_hub.files import PrivateFolder\n"
        "folder = PrivateFolder('test').get()\n"
        "(folder / 'made').touch()\n"
        "print(folder, flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    def end(process: subprocess.Popen[str]) -> None:
        process.communicate("")

    killed, of_killed = start()
    living, of_living = start()
    new, of_new = start()
    end(killed)
    end(new)
    foreign = tmp_path / "kernels_hub-test-foreign"
    foreign.mkdir()
    for folder in (of_killed, of_living, foreign):
        os.utime(folder, (0, 0))
    last, of_last = start()
    assert sorted(tmp_path.iterdir()) == sorted([of_living, of_new, foreign, of_last])
    end(living)
    end(last)


def test_files_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(files.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_ends_removes_nothing_that_its_parent_set_aside(tmp_path: Path) -> None:
    """What a thread of the parent had set aside when the child was forked."""
    script = """
import os, sys, threading
from pathlib import Path
from kernels_hub.files import set_aside

folder = Path(sys.argv[1], "folder")
folder.mkdir()
(folder / "kept").write_text("as it was")
aside, ended = threading.Event(), threading.Event()

def replace():
    try:
        with set_aside(folder, ["kept"]):
            aside.set()
            ended.wait()
            raise ValueError
    except ValueError:
        print((folder / "kept").read_text(), flush=True)

thread = threading.Thread(target=replace, daemon=True)
thread.start()
aside.wait()
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
ended.set()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.stdout, done.returncode) == ("as it was\n", 0), done.stderr
