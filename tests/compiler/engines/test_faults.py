"""Plugins that misbehave in every way there is: each is named, with its reason, and the other engines go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels_hub.compiler import Graph
from kernels_hub.compiler.engines import registry
from kernels_hub.compiler.engines.engine import Decline, Device, Support
from kernels_hub.compiler.engines.guard import checked, compiled, loaded
from kernels_hub.compiler.errors import BuildError, EngineError, EvaluateError, PlanError

PLUGINS = Path(__file__).parent / "plugins"
CPU = Device("cpu")

# Plugin -> what its failure says.
REFUSED = {
    "throws_at_import": "ZeroDivisionError: division by zero",
    "ends_the_process_at_import": "SystemExit: 3",
    "interrupts_at_import": "KeyboardInterrupt",
    "throws_at_discovery": "LookupError: no device file",
    "throws_what_cannot_be_shown": "Unprintable: (its message cannot be shown)",
    "misses_a_library": "ModuleNotFoundError: No module named 'surely_not_installed'",
    "gives_nothing": "it gives no engines",
    "gives_none": "it gives a NoneType, no engine",
    "gives_a_class": "it gives the class Engine, no engine: a class; give an instance of it",
    "gives_half_an_engine": "it gives a Half, no engine: it lacks compile(), load()",
    "gives_words": "it gives a str, no engine",
    "has_no_name": "it lacks name",
    "has_a_bad_name": "the name 'Fast Engine!' is none",
    "has_one_name_twice": "it gives the name 'twice' more than once; none of it is taken",
    "defines_nothing": "the module defines neither engines() nor ENGINE",
    "takes_a_bundled_name": "the name 'library' is taken by bundled library; that one stays",
}


@pytest.fixture(autouse=True)
def _faults(monkeypatch):
    monkeypatch.delenv(registry.PATH_VARIABLE, raising=False)
    registry.set_plugin_paths([PLUGINS])
    yield
    registry.set_plugin_paths([])


def graph():
    made = Graph("double")
    made.output("y", made.input("x", (3,)) * 2.0)
    return made


def test_every_plugin_that_is_refused_says_why():
    failures = {
        Path(one.source).stem: one.reason
        for one in registry.failures()
        if one.source.startswith(str(PLUGINS))
    }
    assert set(failures) == set(REFUSED)
    for name, words in REFUSED.items():
        assert words in failures[name], name


def test_a_plugin_that_is_no_python(tmp_path):
    (tmp_path / "wrong.py").write_text("def engines(:")
    registry.set_plugin_paths([tmp_path])
    (found,) = [one.reason for one in registry.failures() if one.source == str(tmp_path / "wrong.py")]
    assert found.startswith("SyntaxError: ") and "line 1" in found


def test_the_others_go_on():
    found = {one.name for one in registry.engines()}
    assert {"library", "reference", "faulty-check", "faulty-compile", "faulty-run"} <= found
    assert "twice" not in found
    assert registry.registered()[-1].source.startswith(str(PLUGINS))
    plan = compiled(registry.engine("library"), graph(), CPU)
    assert plan.compute([torch.ones(3)])[0].tolist() == [2.0, 2.0, 2.0]


def faulty(name, mode):
    engine = registry.engine(f"faulty-{name}").loaded()
    engine.mode = mode
    return engine


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("throws", "engine faulty-check threw at check: RuntimeError: driver is gone"),
        ("exits", "engine faulty-check wanted to end the process at check (SystemExit: 1)"),
        ("none", "engine faulty-check answered check with a NoneType, no Support or Decline"),
        ("true", "engine faulty-check answered check with a bool, no Support or Decline"),
        ("silent", "engine faulty-check gave no reason"),
        ("values", "some of it"),
    ],
)
def test_check(mode, words):
    answer = checked(faulty("check", mode), graph(), CPU)
    assert isinstance(answer, Decline) and answer.reason == words
    assert answer.values == (frozenset({1}) if mode == "values" else frozenset())


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("throws", "RuntimeError: out of registers"),
        ("exits", "SystemExit: 1"),
        ("none", "it gave a NoneType, which lacks signature, workspace_size, execute, serialize, profile"),
        ("half", "it gave a HalfPlan, which lacks serialize, profile"),
        ("lies", "its plan says that it is of engine 'library'"),
        ("memory", "MemoryError"),
    ],
)
def test_claims_and_then_fails_to_compile(mode, words):
    engine = faulty("compile", mode)
    assert isinstance(checked(engine, graph(), CPU), Support)
    with pytest.raises(EngineError) as raised:
        compiled(engine, graph(), CPU)
    message = str(raised.value)
    assert message.startswith(
        "engine faulty-compile took graph double on cpu and then failed to compile it: "
    )
    assert words in message


def test_a_compiler_that_failed_is_still_that():
    with pytest.raises(BuildError, match="faulty-compile took graph double.*: x.cpp:3: expected ';'"):
        compiled(faulty("compile", "build"), graph(), CPU)


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        (
            "throws",
            EngineError,
            "engine faulty-run failed at graph double: RuntimeError: illegal memory access",
        ),
        ("exits", EngineError, "engine faulty-run failed at graph double: SystemExit: 1"),
        ("engine", EngineError, "engine faulty-run failed at graph double: %1: overflow"),
        ("data", EvaluateError, "index 7 is out of range"),
    ],
)
def test_run(mode, error, words):
    plan = compiled(faulty("run", mode), graph(), CPU)
    for call in (
        lambda: plan.execute([torch.ones(3)], [torch.empty(3)]),
        lambda: plan.profile([torch.ones(3)]),
    ):
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value) == words


def test_a_plan_that_cannot_allocate_says_so():
    plan = compiled(faulty("run", "fine"), graph(), CPU)
    assert not plan.computes
    with pytest.raises(EngineError, match="do not allocate outputs"):
        plan.compute([torch.ones(3)])


def test_a_plan_that_serializes_to_no_bytes():
    with pytest.raises(
        EngineError, match="faulty-run failed at graph double: it serialized its plan to a str, not to bytes"
    ):
        compiled(faulty("run", "throws"), graph(), CPU).serialize()


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        (
            "throws",
            EngineError,
            "engine faulty-run failed to load a plan for cpu: RuntimeError: no such kernel",
        ),
        ("damaged", PlanError, "cut short"),
    ],
)
def test_load(mode, error, words):
    with pytest.raises(error, match=words):
        loaded(faulty("run", mode), b"plan", CPU)
