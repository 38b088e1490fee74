"""The system compiler and its cache: found again, built again where damaged, safe under concurrency, clear in failure."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels_hub.compiler.runtime import toolchain
from kernels_hub.compiler.runtime.errors import BuildError
from kernels_hub.compiler.runtime.toolchain import Isa, begin, build, isa, load, machine_isas
from kernels_hub.cxx_compiler import find_compiler

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PLAIN = Isa("plain", ("-O0",), frozenset())
SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELS_HUB_CXX", raising=False)
    toolchain._say_once.cache_clear()
    return tmp_path / "cache" / "compiled"


@pytest.fixture
def runs(monkeypatch):
    """The commands of the compiler, but for --version."""
    found: list[list[str]] = []
    run = toolchain.run_compiler

    def counted(command, timeout):
        found.append(command)
        return run(command, timeout)

    monkeypatch.setattr(toolchain, "run_compiler", counted)
    return found


def answer(path: Path) -> int:
    return load(path).answer()


def test_a_library_is_built_once(runs, cache):
    path = build(SOURCE, "a graph/with: a name", PLAIN)
    assert answer(path) == 42
    assert path.parent == cache
    assert path.name.startswith("a_graph_with_a_name-")
    assert len(runs) == 2  # compile, link
    assert build(SOURCE, "a graph/with: a name", PLAIN) == path
    assert len(runs) == 2


def test_source_flags_and_runtime_are_part_of_the_key(monkeypatch):
    first = build(SOURCE, "g", PLAIN)
    assert build(SOURCE.replace("42", "43"), "g", PLAIN) != first
    assert build(SOURCE, "g", Isa("plain", ("-O1",), frozenset())) != first
    monkeypatch.setattr(toolchain, "_headers", lambda: toolchain._Headers((), "other headers"))
    assert build(SOURCE, "g", PLAIN) != first


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "no note", "foreign note"])
def test_a_damaged_library_is_built_again(damage, runs):
    path = build(SOURCE, "g", PLAIN)
    note = path.with_name(f"{path.name}.sha256")
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no note":
        note.unlink()
    else:
        note.write_bytes(b"\xff\xfe")
    before = len(runs)
    assert build(SOURCE, "g", PLAIN) == path
    assert len(runs) == before + 2
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).answer() != 42)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)  # this process may have it loaded


def test_the_runtime_is_compiled_once_for_all(runs, tmp_path, monkeypatch):
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "part.h").write_text("int part();\n")
    (folder / "part.cpp").write_text('#include "part.h"\nint part() { return 40; }\n')
    monkeypatch.setattr(toolchain, "RUNTIME", folder)
    text = '#include "part.h"\nextern "C" int answer() { return part() + 2; }\n'
    assert answer(build(text, "g", PLAIN, runtime=("part.cpp",))) == 42
    assert answer(build(text.replace("+ 2", "+ 3"), "g", PLAIN, runtime=("part.cpp",))) == 43
    assert sum(any(one.endswith("/part.cpp") for one in command) for command in runs) == 1
    (folder / "part.h").write_text("int part();  // changed\n")
    build(text, "g", PLAIN, runtime=("part.cpp",))
    assert sum(any(one.endswith("/part.cpp") for one in command) for command in runs) == 2


def test_a_failing_compiler_is_shown_shortened_and_the_source_is_kept():
    broken = "\n".join(f"int f{i}() {{ return missing_{i}; }}" for i in range(20))
    with pytest.raises(BuildError) as raised:
        build(broken, "broken graph", PLAIN)
    message = str(raised.value)
    assert "missing_0" in message and "missing_19" not in message
    assert "and 17 more errors" in message
    assert len(message.splitlines()) < 20
    kept = re.search(r"failed on (\S+) \(kept\)", message)
    assert kept and Path(kept[1]).read_text() == broken


def test_a_linker_that_fails_is_reported(tmp_path):
    compiler = tmp_path / "no-linker"
    tests = 'for a; do case "$a" in -c|--version) exec ' + f'{find_compiler()} "$@";; esac; done'
    compiler.write_text(f"#!/bin/sh\n{tests}\necho 'ld: error: no room' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(BuildError, match="failed to link .*\n.*no room"):
        build(SOURCE, "g", PLAIN, compiler=str(compiler))


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    assert find_compiler() is None
    with pytest.raises(BuildError, match="graph g: no C\\+\\+ compiler found; set KERNELS_HUB_CXX"):
        build(SOURCE, "g", PLAIN)


def test_the_compiler_is_the_one_that_is_asked_for(monkeypatch, tmp_path):
    mine = tmp_path / "my-c++"
    mine.symlink_to(shutil.which("g++"))
    monkeypatch.setenv("KERNELS_HUB_CXX", str(mine))
    assert find_compiler() == str(mine)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(tmp_path / "absent"))
    assert find_compiler() != str(mine)


def test_a_program_that_is_no_compiler():
    with pytest.raises(BuildError, match="--version failed"):
        build(SOURCE, "g", PLAIN, compiler=shutil.which("false"))


def test_a_folder_that_cannot_be_written_to(cache, caplog):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")  # what anchor cannot write to either
    with caplog.at_level(logging.WARNING, logger="kernels_hub"):
        first, again = build(SOURCE, "g", PLAIN), build(SOURCE, "g", PLAIN)
    assert answer(first) == 42
    assert first == again and cache not in first.parents
    assert [str(cache) in record.getMessage() for record in caplog.records] == [True]


BUILDS = f"""
from kernels_hub.compiler.runtime.toolchain import Isa, build, load
path = build({SOURCE!r}, "g", Isa("plain", ("-O0",), frozenset()))
print(path.parent, load(path).answer())
"""


@pytest.mark.parametrize("usable", [True, False], ids=["cache", "no_cache"])
def test_a_process_leaves_no_folder_of_its_own(usable: bool, tmp_path: Path, cache: Path):
    if not usable:
        cache.parent.mkdir(parents=True)
        cache.write_text("a file where the folder should be")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILDS],
        capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    folder, found = done.stdout.split()
    assert found == "42"
    assert (Path(folder) == cache) is usable and (temporary in Path(folder).parents) is not usable
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_not_the_sources_fault(monkeypatch, cache, tmp_path):
    compiler = tmp_path / "full"
    full = "echo 'as: error: No space left on device' >&2; exit 1"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *{cache}*) {full} ;; esac\nexec {find_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(compiler))
    path = build(SOURCE, "g", PLAIN)
    assert answer(path) == 42 and cache not in path.parents


def test_threads_build_a_thing_once(runs):
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(build(SOURCE, "g", PLAIN))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(paths)) == 1 and len(paths) == 8
    assert len(runs) == 2


def test_processes_share_a_cache(cache):
    code = (
        "from kernels_hub.compiler.runtime.toolchain import Isa, build, load\n"
        f"path = build({SOURCE!r}, 'g', Isa('plain', ('-O0',), frozenset()))\n"
        "assert load(path).answer() == 42"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ, cwd=cache.anchor) for _ in range(3)
    ]
    assert [one.wait(120) for one in running] == [0, 0, 0]
    kept = sorted(one.suffix for one in cache.iterdir())
    assert kept == [".cpp", ".sha256", ".so"], "no private files are left behind"


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"no library")
    with pytest.raises(BuildError, match="does not load"):
        load(path)
    assert ctypes.CDLL(None)  # the linker still works


def test_levels_of_this_machine():
    names = [one.name for one in machine_isas()]
    assert names[-1] == "baseline"
    assert isa("baseline").flags == ()
    with pytest.raises(BuildError, match="does not run instruction set level 'avx9000'"):
        isa("avx9000")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2", ["baseline"]),
        ("avx2 bmi1 bmi2 f16c fma movbe sse2", ["avx2", "baseline"]),
        (
            "avx2 bmi1 bmi2 f16c fma movbe avx512f avx512bw avx512cd avx512dq avx512vl",
            ["avx512", "avx2", "baseline"],
        ),
        ("avx2 avx512f avx512bw avx512cd avx512dq avx512vl", ["baseline"]),
    ],
)
def test_levels_by_the_flags_of_a_cpu(flags, expected, monkeypatch):
    monkeypatch.setattr(toolchain, "cpu_flags", lambda: f"flags\t\t: {flags}\n")
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "x86_64")
    assert [one.name for one in machine_isas.__wrapped__()] == expected
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "aarch64")
    assert [one.name for one in machine_isas.__wrapped__()] == ["baseline"]


def test_a_compiler_that_does_not_end(monkeypatch, tmp_path):
    stuck = tmp_path / "stuck-g++"
    stuck.write_text('#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@" ;; esac\nexec sleep 1000\n')
    stuck.chmod(0o755)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(stuck))
    monkeypatch.setattr(toolchain, "TIMEOUT_S", 0.2)
    with pytest.raises(BuildError, match=r"took more than 0\.2 s on"):
        build(SOURCE, "product", PLAIN)


def test_the_runtime_is_compiled_ahead_once(runs, cache):
    begin(("linked_product.cpp",), PLAIN)
    assert answer(build(SOURCE, "product", PLAIN, runtime=("linked_product.cpp",))) == 42
    compiled = [one for one in runs if any(part.endswith("linked_product.cpp") for part in one)]
    assert len(compiled) == 1, "the build waited for it"
    assert not list(cache.glob("*.tmp"))


def test_what_cannot_be_begun_is_told_by_the_build(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    begin(("linked_product.cpp",), PLAIN)
    monkeypatch.setenv("KERNELS_HUB_CXX", shutil.which("false") or "false")
    begin(("linked_product.cpp",), PLAIN)
    with pytest.raises(BuildError):
        build(SOURCE, "product", PLAIN, runtime=("linked_product.cpp",))


def test_the_first_header_is_precompiled_for_those_who_compile_much(cache, monkeypatch):
    """The same library, byte for byte, and GCC says that it took what was precompiled."""
    monkeypatch.setattr(toolchain.precompiled, "_KNOWN", {})
    monkeypatch.setattr(toolchain.precompiled, "_DISCARDED", set())  # as a crash of GCC may have left it
    source = '#include "scalar.h"\nextern "C" float answer(float x) {{ return std::sqrt(x) + {}; }}\n'
    before = build(source.format(0), "g", PLAIN).read_bytes()
    for number in range(1, toolchain.precompiled.FIRST + 1):
        build(source.format(number), "g", PLAIN)
    (known,) = toolchain.precompiled._KNOWN.values()
    assert known._process is not None and known._process.wait() == 0
    build(source.format(-1), "g", PLAIN)
    folder = toolchain._headers().folder()
    shutil.rmtree(cache)
    assert build(source.format(0), "g", PLAIN).read_bytes() == before
    unit = folder.parent / "unit.cpp"
    unit.write_text(source.format(0))
    asked = subprocess.run(
        ["g++", *toolchain.FLAGS, *PLAIN.flags, f"-I{folder}", "-H", "-fsyntax-only", str(unit)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"! {folder}/scalar.h.gch" in asked.stderr


def test_a_unit_that_a_precompiled_header_breaks_is_compiled_without(cache, tmp_path, monkeypatch):
    """A compiler that crashes wherever something precompiled lies, as GCC 12 did once."""
    monkeypatch.setattr(toolchain.precompiled, "_KNOWN", {})
    monkeypatch.setattr(toolchain.precompiled, "_DISCARDED", set())
    folder = toolchain._headers().folder()
    shutil.rmtree(folder / toolchain.precompiled.COMPILED, ignore_errors=True)
    crashing = tmp_path / "crashing-g++"
    crashing.write_text(
        f'#!/bin/sh\ncase "$*" in\n*c++-header*|*--version*) ;;\n*) if [ -e "{folder}/scalar.h.gch" ]; then'
        f' echo "unit.cpp:1:1: internal compiler error: Segmentation fault" >&2; exit 1; fi ;;\nesac\nexec g++ "$@"\n'
    )
    crashing.chmod(0o755)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(crashing))
    source = '#include "scalar.h"\nextern "C" int answer() {{ return {}; }}\n'
    for number in range(1, toolchain.precompiled.FIRST + 2):
        build(source.format(number), "g", PLAIN)
    (known,) = toolchain.precompiled._KNOWN.values()
    assert known._process is not None and known._process.wait() == 0
    assert answer(build(source.format(42), "g", PLAIN)) == 42
    assert not toolchain.precompiled.is_there(folder)
    assert answer(build(source.format(43), "g", PLAIN)) == 43
    assert not toolchain.precompiled.is_there(folder), "not made again"
    with pytest.raises(BuildError, match="expected"):
        build(source.format("}"), "g", PLAIN)


def test_what_cannot_be_precompiled_is_compiled_as_before(monkeypatch):
    monkeypatch.setattr(toolchain.precompiled, "_KNOWN", {})

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(toolchain.precompiled, "subprocess", SimpleNamespace(Popen=refuse, DEVNULL=None))
    for number in range(toolchain.precompiled.FIRST + 3):
        path = build(f'#include "scalar.h"\nextern "C" int answer() {{ return {number}; }}\n', "g", PLAIN)
        assert answer(path) == number
