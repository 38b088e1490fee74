"""Plans as files: they run in another process, and what is damaged or made for something else does not load."""

from __future__ import annotations

import json
import os
from unittest import mock

import numpy as np
import pytest
import torch

from kernels_hub.compiler import Graph, Plan, compile, evaluate, load_executable
from kernels_hub.compiler.engines.container import read_container, write_container
from kernels_hub.compiler.engines.engine import Device
from kernels_hub.compiler.engines.reference import ENGINE as REFERENCE
from kernels_hub.compiler.errors import EngineError, PlanError
from kernels_hub.compiler.plan.selection import create_plans
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.hostile_names import canaries
from tests.compiler.plan.plan_engines import FailingEngine, PartEngine, only_engines
from tests.compiler.strategies import assert_same_outputs
from tests.warm_process import run_script

LEFT, RIGHT = PartEngine("left", lambda op: op != "exp", scratch=64), PartEngine("right")


def graph():
    made = Graph("file")
    made.symbol("batch", 1, 100)
    x = made.input("x", ("batch", 4))
    w = made.parameter("w", (4, 2), data=np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    made.output("y", ((x @ w).exp().flip(0) * made.iota("batch", "float32").unsqueeze(1)).cast("bfloat16"))
    made.output("total", x.sum())
    return made


GIVEN = {"x": np.arange(12, dtype=np.float32).reshape(3, 4) / 10}


@pytest.fixture(scope="module")
def saved():
    with only_engines(LEFT, RIGHT):
        found = create_plans(graph(), "cpu", rank=lambda *_: ["left", "right"])
        made = next(one for one in found if len(one.engines) == 3).build()
        return made.serialize()


def test_what_was_saved_gives_the_same(saved):
    with only_engines(RIGHT, LEFT):
        plan = Plan.load(saved)
    assert plan.engines == ("left", "right", "left")
    assert plan.signature.inputs["x"] == graph().inputs["x"].type
    assert_same_outputs(plan.execute(GIVEN), evaluate(graph(), GIVEN))
    with only_engines(RIGHT, LEFT):
        assert Plan.load(plan.serialize()).serialize() == saved


def test_another_process_runs_it(tmp_path):
    run = compile(graph(), "cpu", engines=("library", "reference"))
    expected = run(torch.from_numpy(GIVEN["x"]))
    run.save(tmp_path / "model.khplan")
    torch.save(expected, tmp_path / "expected.pt")
    code = (
        "import torch, sys; from kernels_hub.compiler import load_executable\n"
        "run = load_executable(sys.argv[1] + '/model.khplan')\n"
        "x = torch.arange(12, dtype=torch.float32).view(3, 4) / 10\n"
        "for a, b in zip(run(x), torch.load(sys.argv[1] + '/expected.pt')): assert torch.equal(a, b), (a, b)\n"
        "print(run.plan.engines)"
    )
    done = run_script(code, str(tmp_path))
    assert done.returncode == 0 and "library" in done.stdout, done.stderr


def test_every_flipped_bit_is_found(saved):
    """In each byte of the start and of the header, and of the sections in every seventh."""
    sections = sum(len(part) for part in read_container(saved, "it").sections.values())
    places = [*range(len(saved) - sections), *range(len(saved) - sections, len(saved), 7), len(saved) - 1]
    with only_engines(LEFT, RIGHT):
        for place in places:
            damaged = bytearray(saved)
            damaged[place] ^= 1 << place % 8
            with pytest.raises(PlanError):
                Plan.load(bytes(damaged))


def test_every_cut_is_found(saved):
    with only_engines(LEFT, RIGHT):
        for length in [*range(200), *range(200, len(saved), 31), len(saved) - 1]:
            with pytest.raises(PlanError):
                Plan.load(saved[:length])
        with pytest.raises(PlanError, match="1 bytes after its last section"):
            Plan.load(saved + b"\0")


def header_of(saved):
    return json.loads(read_container(saved, "it").text)


def changed(saved, **header):
    found = read_container(saved, "it")
    return write_container(
        {**header_of(saved), **header}, {name: bytes(one) for name, one in found.sections.items()}
    )


def test_what_is_made_for_something_else_says_so(saved):
    version = {"kernels_hub": "0.0.1", "torch": torch.__version__}
    here = {"kernels_hub": header_of(saved)["versions"]["kernels_hub"]}
    cases = [
        (
            changed(saved, versions=version),
            "made with kernels_hub 0.0.1, this is .*; compile the graph again",
        ),
        (changed(saved, versions={**here, "torch": "1.0"}), "made with torch 1.0, this is"),
        (changed(saved, device={"type": "cpu", "arch": "avx1024"}), r"is for cpu \(avx1024\), not for cpu"),
        (changed(saved, device={"type": "cuda", "arch": "sm_10"}), "is for cuda"),
        (changed(saved, kind="executable"), "is a executable file, not a plan file"),
        (b"PK" + saved, "is no plan"),
        (saved[:8] + b"\7\0\0\0" + saved[12:], "has format 7, this kernels_hub reads 1"),
    ]
    with only_engines(LEFT, RIGHT):
        for data, message in cases:
            with pytest.raises(PlanError, match=message):
                Plan.load(data)
        with pytest.raises(PlanError, match="not for cpu"):
            Plan.load(saved, Device("cpu", 0, "baseline"))


def test_an_engine_that_is_missing_or_fails_is_named(saved):
    with (
        only_engines(LEFT),
        pytest.raises(PlanError, match="segment 1 is for engine 'right', which is not here"),
    ):
        Plan.load(saved)
    payload = {"engine": "right", "id": 5}
    rows = header_of(saved)["segments"]
    with only_engines(LEFT, RIGHT), pytest.raises(PlanError, match="'right', whose id is another"):
        Plan.load(changed(saved, segments=[rows[0], {**rows[1], **payload}, rows[2]]))

    class Forgetful(PartEngine):
        def load(self, payload, device):
            raise KeyError("what was it")

    with (
        only_engines(LEFT, Forgetful("right")),
        pytest.raises(PlanError, match=r"engine right .*what was it"),
    ):
        Plan.load(saved)


def test_the_payload_of_another_engine_is_refused(saved):
    found = read_container(saved, "it")
    parts = {name: bytes(one) for name, one in found.sections.items()}
    parts["segment 0"] = parts["segment 1"]
    with only_engines(LEFT, RIGHT), pytest.raises(PlanError, match="segment 0, engine left: .*right"):
        Plan.load(write_container(header_of(saved), parts))


def test_a_payload_of_another_signature_is_refused(saved):
    """Both segments of one engine, exchanged: each is whole, and neither fits its place."""
    found = read_container(saved, "it")
    parts = {name: bytes(one) for name, one in found.sections.items()}
    parts["segment 0"], parts["segment 2"] = parts["segment 2"], parts["segment 0"]
    with only_engines(LEFT, RIGHT), pytest.raises(PlanError, match="segment 0"):
        Plan.load(write_container(header_of(saved), parts))


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(PlanError, match="No such file"):
        load_executable(tmp_path / "nothing")
    with pytest.raises(PlanError, match="directory"):
        load_executable(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(PlanError, match="is no plan"):
        load_executable(tmp_path / "empty")
    (tmp_path / "empty").unlink()
    run = compile(graph(), "cpu", engines=("reference",))
    target = tmp_path / "model"
    run.save(target)
    before = target.read_bytes()
    with (
        mock.patch.object(os, "replace", side_effect=OSError("full")),
        pytest.raises(OSError, match="full"),
    ):
        run.save(target)
    assert [one.name for one in tmp_path.iterdir()] == ["model"] and target.read_bytes() == before


def test_an_engine_that_cannot_serialize_is_named():
    with only_engines(FailingEngine("mute", "serialize")):
        run = compile(graph(), "cpu")
        with pytest.raises(EngineError, match="engine mute .* serialize"):
            run.plan.serialize()


def test_specialised_plans_are_saved_with_their_shapes(tmp_path):
    with only_engines(PartEngine("numbers", symbolic=False)):
        run = compile(graph(), "cpu")
        with pytest.raises(PlanError, match="call it before it is saved"):
            run.save(tmp_path / "model")
        for batch in (1, 3):
            run(np.ones((batch, 4), np.float32))
        run.save(tmp_path / "model")
        again = load_executable(tmp_path / "model")
        assert_same_outputs(again.execute(GIVEN), evaluate(graph(), GIVEN))
        with pytest.raises(
            PlanError, match=r"with plans for the shapes \[\[1, 4\]\]; \[\[3, 4\]\], not for \[\[2, 4\]\]"
        ):
            again(np.ones((2, 4), np.float32))


def test_the_oracle_is_saved_as_well():
    with only_engines(REFERENCE):
        plan = Plan.load(compile(graph(), "cpu").plan.serialize())
        assert_same_outputs(plan.execute(GIVEN), evaluate(graph(), GIVEN))


def repacked(saved, **changes):
    """A plan of one segment, with fields of its payload's header changed and the digests right."""
    found = read_container(saved, "it")
    inner = read_container(found.sections["segment 0"], "it")
    header = {**json.loads(inner.text), **changes}
    parts = {name: bytes(one) for name, one in inner.sections.items()}
    sections = {"graph": bytes(found.sections["graph"]), "segment 0": write_container(header, parts)}
    return write_container(header_of(saved), sections)


def test_weights_that_are_not_of_their_parameters_types_are_refused():
    """C++ would read behind their ends."""
    saved = compile(graph(), "cpu", engines=("library",)).plan.serialize()
    cases = [
        ({"w": {"dtype": "float32", "shape": [8]}}, r"'w' is float32\[8\], its parameter is float32\[4, 2\]"),
        ({"w": {"dtype": "int32", "shape": [4, 2]}}, r"'w' is int32\[4, 2\], its parameter"),
        ({"w": {"dtype": "float32", "shape": [4, 3]}}, "has 32 bytes, which are no float32"),
        ({"w": {"dtype": "float32", "shape": [-4, -2]}}, r"at `\$\.weights"),
        ({}, "'w' is not given"),
        ({"w": {"dtype": "floot", "shape": [4, 2]}}, "no dtype is called 'floot'"),
    ]
    for weights, message in cases:
        with pytest.raises(PlanError, match=message):
            Plan.load(repacked(saved, weights=weights))


def test_fields_that_make_no_sense_are_named(saved):
    segments = header_of(saved)["segments"]
    cases = [
        ({"symbols": {"batch": [1, "many"]}}, r"Expected `int \| null`, got `str` - at `\$.symbols"),
        ({"symbols": {"$batch": [1, 100]}}, "does not begin with"),
        ({"output_slots": [0, 99]}, "fill .* slots, not"),
        ({"output_slots": [0, 0]}, "the slots of the outputs are not of their types"),
        ({"device": None}, r"at `\$.device`"),
        ({"digest": 5}, r"at `\$.digest`"),
        ({"segments": [{**segments[0], "inputs": [9]}, *segments[1:]]}, "reads slot 9, which nothing fills"),
        ({"segments": [{**segments[0], "outputs": [0]}, *segments[1:]]}, "fills slot 0, which it cannot"),
        ({"inputs": [["x", "float32", ["(" * 2000]]]}, "brackets at most 50 deep"),
        ({"inputs": [["x", "float32", ["*".join(["(a + b)"] * 300)]]]}, "not among the symbols"),
        ({"slots": [["float32", ["9" * 5000]]]}, "a dim has at most 4096"),
        ({"defined": {"other": 0}}, "defines the size 'other'"),
    ]
    with only_engines(LEFT, RIGHT):
        for header, message in cases:
            with pytest.raises(PlanError, match=message):
                Plan.load(changed(saved, **header))


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_names_in_a_plan_are_no_code(tmp_path, monkeypatch):
    """The C++ of a plan is generated where it is loaded: of names that would break out of it, nothing runs."""
    monkeypatch.chdir(tmp_path)
    texts = [one for one in canaries() if "cstdio" in one][:8]
    hostile = Graph(texts[0])
    for number, text in enumerate(texts):
        x = hostile.input(f"x{text}", (hostile.symbol(f"n{number}{text}"), 4 + number))
        with hostile.origin(text):
            hostile.output(f"y{text}", x.exp().sum(-1))
    run = compile(hostile, "cpu", engines=("cpp",))
    run.save(tmp_path / "model.khplan")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "cache"))
    again = load_executable(tmp_path / "model.khplan")
    given = [np.ones((2, 4 + number), np.float32) for number in range(len(texts))]
    for result in again(*given):
        assert result.shape == (2,) and (result > 0).all()
    assert b"std::fclose" in b"".join(one.read_bytes() for one in (tmp_path / "cache").rglob("*.cpp"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cache", "model.khplan"]
