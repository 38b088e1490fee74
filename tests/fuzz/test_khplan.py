"""Damaged and hostile plans: they load, or raise PlanError, and what loads runs, or raises an error of the library."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import struct
from typing import Any

import numpy as np
import pytest

from kernels_hub.compiler import Graph, Plan, compile
from kernels_hub.compiler.engines.payload import unpack_graph
from kernels_hub.compiler.errors import CompilerError, PlanError
from kernels_hub.compiler.ir.dims import Expr
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.hostile_names import every_kind
from tests.fuzz import harness
from tests.fuzz.mutations import HOSTILE_TEXTS, mutate_bytes, mutate_tree

_START = struct.Struct("<8sII32s")
_LARGEST = 1 << 16  # elements of a value of a plan that is run
_WORDS = (
    "symbols", "return", "in", "..", ">=", "input", "parameter", "constant", "matmul", "float32", "bfloat16", "int4",
    "complex64", "bool", "axes=[0]", "axis=99", "axis=-1", "shape=[2, 2]", "[]", "[[", "((((", "----", "%0", "%9999", '@"x"',
    "min(1, n)", "n//0", "n % 0", "99999999999999999999", "nan", "-inf", "1e999", "true", "{", "}", '"\\ud800"', '"\\x"',
    "@00000000000000000000000000000000", "data", '"$i0; int x"', "#", "\n",
)  # fmt: skip


def _small() -> Graph:
    graph = Graph("small")
    graph.symbol("batch", 1, 100)
    x = graph.input("x", ("batch", 4))
    w = graph.parameter("w", (4, 2), data=np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    table = graph.constant(np.arange(24, dtype=np.float32).reshape(12, 2))
    graph.output("y", ((x @ w).exp().flip(0) * graph.iota("batch", "float32").unsqueeze(1)).cast("bfloat16"))
    graph.output("total", x.sum() + table.sum())
    return graph


def _kinds() -> Graph:
    graph = every_kind(lambda name: name, sort=True)
    for name, value in graph.parameters.items():
        graph.weights[name] = np.zeros(value.shape, np.float32)
    return graph


@pytest.fixture(scope="module")
def seeds() -> list[bytes]:
    engines = ("library", "reference")
    return [
        compile(made(), "cpu", engines=(engine,)).plan.serialize()
        for made in (_small, _kinds)
        for engine in engines
    ]


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A container without any of the reader's checks."""
    length = _START.unpack_from(data)[2]
    header = json.loads(data[_START.size : _START.size + length])
    sections, offset = {}, _START.size + length
    for row in header.pop("sections"):
        sections[row["name"]] = data[offset : offset + row["size"]]
        offset += row["size"]
    return header, sections


def _written(header: Any, sections: dict[str, bytes], chance: random.Random) -> bytes:
    """A container with right digests, whatever its header is; at times the table of sections is damaged, too."""
    rows = [
        {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sections.items()
    ]
    if chance.random() < 0.05:
        rows = mutate_tree(rows, chance)
    if isinstance(header, dict):
        header = {**header, "sections": rows}
    text = json.dumps(header, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"".join(
        (_START.pack(b"KHPLAN\r\n", 1, len(text), hashlib.sha256(text).digest()), text, *sections.values())
    )


def _mutate_text(text: str, chance: random.Random) -> str:
    """A graph's text with a few words replaced, dropped, inserted or exchanged."""
    words = text.split(" ")
    for _ in range(chance.choice((0, 1, 1, 2))):
        at = chance.randrange(len(words))
        match chance.randrange(5):
            case 0:
                words[at] = chance.choice(_WORDS)
            case 1:
                words.insert(at, chance.choice(_WORDS))
            case 2:
                other = chance.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = f'@"{chance.choice(HOSTILE_TEXTS)}"'
            case _:
                words[at] = mutate_bytes(words[at].encode(), chance).decode("utf-8", "replace")
        if not words:
            return ""
    return " ".join(words)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage the file's bytes, its header, or (mostly) the graph, weights and header of an engine's payload."""
    if chance.random() < 0.05:
        return mutate_bytes(data, chance)
    header, sections = _read(data)
    segment = "segment 0"
    match chance.randrange(6):
        case 0 | 1:
            header = mutate_tree(header, chance)
        case 2:
            name = chance.choice(list(sections))
            sections[name] = mutate_bytes(sections[name], chance)
        case 3:
            inner, parts = _read(sections[segment])
            sections[segment] = _written(mutate_tree(inner, chance), parts, chance)
        case _:
            inner, parts = _read(sections[segment])
            inner["graph"] = _mutate_text(inner["graph"], chance)
            if parts and chance.random() < 0.1:
                name = chance.choice(list(parts))
                parts[name] = mutate_bytes(parts[name], chance)
            sections[segment] = _written(inner, parts, chance)
    return _written(header, sections, chance)


def _elements(plan: Plan) -> int:
    """Of the largest value of a plan at the least sizes; a lot where that is not known."""
    most = 0
    for segment in plan.segments:
        graph = unpack_graph(segment.plan.serialize(), segment.engine, plan.device).graph
        for value in graph.values:
            size = 1
            for dim in value.shape:
                size *= _LARGEST if isinstance(dim, Expr) and dim.only_symbol is None else _least(dim)
            most = max(most, size)
    return most


def _least(dim: Any) -> int:
    return dim if isinstance(dim, int) else max(dim.only_symbol.min, 1)


def load_and_run(data: bytes) -> None:
    """Load a plan, and run it on zeros where that is little work."""
    plan = Plan.load(data)
    repr(plan)
    if not data[-1] % 4 and _elements(plan) < _LARGEST:
        inputs = {
            name: np.zeros([_least(dim) for dim in of.shape], of.dtype.numpy)
            for name, of in plan.signature.inputs.items()
            if all(isinstance(dim, int) or dim.only_symbol for dim in of.shape)
        }
        with contextlib.suppress(CompilerError):
            plan.execute(inputs)


def test_variants_load_or_are_refused(seeds):
    harness.run("khplan", seeds, mutate, load_and_run, (PlanError,), count=harness.budget(400))


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_variants_of_a_plan_of_generated_code(tmp_path, monkeypatch):
    """Each variant that loads is compiled, so there are few; names that are code do not run."""
    monkeypatch.chdir(tmp_path)
    seed = compile(_small(), "cpu", engines=("cpp",)).plan.serialize()
    chance, loaded = random.Random(1), 0
    for _ in range(harness.budget(12, 300)):
        try:
            Plan.load(mutate(seed, chance))
            loaded += 1
        except PlanError:
            pass
    assert loaded
    assert not list(tmp_path.iterdir())
