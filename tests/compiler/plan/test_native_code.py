"""Built code in plans: it runs where nothing can be built and the file is trusted, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
import torch

from kernels_hub.compiler import Graph, compile, executable, load_executable
from kernels_hub.compiler.engines.container import read_container, write_container
from kernels_hub.compiler.engines.native_code import _NativeHeader
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.plan import file as plan_file
from kernels_hub.compiler.plan.file import PlanHeader, may_run_native_code
from kernels_hub.compiler.runtime.toolchain import load as load_library
from kernels_hub.cxx_compiler import find_compiler
from kernels_hub.trust.policy import TRUST_FILE

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    graph = Graph("native")
    graph.output("y", (graph.input("x", ("n", 3)) * 2.0).relu())
    path = tmp_path_factory.mktemp("plans") / "native.khplan"
    compile(graph, "cpu", engines=["cpp"]).save(path)
    return path


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")


def with_code(saved, *, library=None, **changed):
    """The file with another library, or another header of it; every digest of the container made right again."""
    outer = read_container(saved.read_bytes(), "outer")
    plan = read_container(outer.section("plan 0"), "plan")
    code = read_container(plan.section("segment 0 native code"), "code")
    header = code.header(_NativeHeader)
    fields = {
        "kind": header.kind,
        "engine": header.engine,
        "level": header.level,
        "identity": header.identity,
    }
    made = write_container({**fields, **changed}, {"library": library or bytes(code.section("library"))})
    sections = {name: bytes(part) for name, part in plan.sections.items()}
    return rewritten(outer, rewritten(plan, made, "segment 0 native code", sections), "plan 0", {})


def rewritten(container, data, name, sections):
    header = {key: value for key, value in json.loads(container.text).items() if key != "sections"}
    return write_container(header, {**sections, name: data})


def test_it_runs_where_it_is_trusted(saved, no_compiler):
    expected = (X * 2).relu()
    for trust in (True, hashlib.sha256(saved.read_bytes()).hexdigest()):
        run = load_executable(saved, "cpu", trust_native_code=trust)
        assert run.plan.engines == ("cpp",) and torch.equal(run(X), expected)
        assert torch.equal(run(X[:1]), expected[:1])


@pytest.mark.parametrize("load", ["executable", "plan"])
def test_what_is_run_is_what_was_hashed(load, saved, no_compiler, tmp_path, monkeypatch):
    """Also where the file is written to between the two."""
    path = tmp_path / "changed.khplan"
    data = saved.read_bytes()
    if load == "plan":
        data = bytes(read_container(data, "outer").section("plan 0"))
    path.write_bytes(data)

    def written_to(given, *rest):
        trusted = may_run_native_code(given, *rest)
        with path.open("r+b") as file:
            file.write(bytes(len(data)))
        return trusted

    digest = hashlib.sha256(data).hexdigest()
    if load == "plan":
        monkeypatch.setattr(plan_file, "may_run_native_code", written_to)
        program, _ = plan_file.read_program(path, "cpu", trust_native_code=digest)
        assert program.name == "native"
    else:
        monkeypatch.setattr(executable, "may_run_native_code", written_to)
        run = load_executable(path, "cpu", trust_native_code=digest)
        assert torch.equal(run(X), (X * 2).relu())
    assert not any(path.read_bytes())


def test_it_is_refused_where_it_is_not(saved, no_compiler, monkeypatch, tmp_path):
    with pytest.raises(PlanError, match="run only if you trust whoever made it"):
        load_executable(saved, "cpu")
    with pytest.raises(PlanError, match="not the file that is trusted"):
        load_executable(saved, "cpu", trust_native_code="0" * 64)
    policy = tmp_path / "trust.toml"
    policy.write_text("schema = 1\ntrust_remote_code = false\n")
    monkeypatch.setenv(TRUST_FILE, str(policy))
    with pytest.raises(PlanError, match="says trust_remote_code = false"):
        load_executable(saved, "cpu", trust_native_code=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"level": "avx9"}, "is for avx9, this machine runs"),
        ({"identity": "0" * 64}, "was built of other sources"),
        ({"engine": "other"}, "is a native code of 'other'"),
        ({"library": b"no library"}, "does not load"),
    ],
)
def test_code_of_something_else_is_refused(saved, no_compiler, changed, words):
    with pytest.raises((PlanError, EngineError), match=words):
        load_executable(with_code(saved, **changed), "cpu", trust_native_code=True)


def test_hostile_code_does_not_run(saved, tmp_path, monkeypatch):
    """Neither beside a compiler, where code is built of the graph, nor without one."""
    canary = tmp_path / "canary"
    source = tmp_path / "hostile.cpp"
    source.write_text(
        f'#include <fcntl.h>\n__attribute__((constructor)) static void run() {{ creat("{canary}", 0600); }}\n'
    )
    library = tmp_path / "hostile.so"
    subprocess.run([find_compiler(), "-shared", "-fPIC", source, "-o", library], check=True, timeout=120)
    hostile = with_code(saved, library=library.read_bytes())
    run = load_executable(hostile, "cpu")
    assert torch.equal(run(X), (X * 2).relu())
    assert torch.equal(load_executable(hostile, "cpu", trust_native_code=True)(X), (X * 2).relu())
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    with pytest.raises(PlanError):
        load_executable(hostile, "cpu")
    assert not canary.exists()
    load_library(library)
    assert canary.exists()  # it would have


def test_header_and_plan_of_older_files_need_no_code(saved):
    outer = read_container(saved.read_bytes(), "outer")
    plan = read_container(outer.section("plan 0"), "plan")
    assert plan.header(PlanHeader).segments[0].engine == "cpp"
    sections = {name: bytes(part) for name, part in plan.sections.items() if "native" not in name}
    graph = sections.pop("graph")
    older = rewritten(outer, rewritten(plan, graph, "graph", sections), "plan 0", {})
    assert torch.equal(load_executable(older, "cpu")(X), (X * 2).relu())
