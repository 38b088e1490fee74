"""Names of a graph never become code, whatever they hold: C++ and Triton."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_hub.compiler import Graph
from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp import translation_unit as cpp
from kernels_hub.compiler.codegen.triton import source as triton
from kernels_hub.compiler.errors import EngineError, GraphError
from kernels_hub.compiler.export.programs import native_program
from kernels_hub.compiler.export.triton_program import triton_program, triton_schedule
from kernels_hub.compiler.ir.parser import parse_graph
from kernels_hub.compiler.ir.printer import print_graph
from kernels_hub.compiler.runtime.toolchain import RUNTIME, find_compiler
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.hostile_names import (
    canaries,
    cpp_tokens,
    every_kind,
    hostile_texts,
    python_tokens,
    without_sizes,
)

TEXTS = hostile_texts()
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")


def _plain(name: str) -> str:
    return name


def _hostile(text: str):
    return lambda name: f"{name}{text}"


@pytest.fixture(scope="module")
def benign():
    made = every_kind(_plain)
    scheduled, launched = schedule(every_kind(_plain, sort=True)), triton_schedule(made)
    assert not isinstance(launched, str), launched
    return (
        cpp_tokens(without_sizes(native_program(scheduled).source)),
        python_tokens(without_sizes(triton.generate(launched).source)),
        python_tokens(without_sizes(triton_program(launched).source)),
    )


def test_the_tokens_tell_code_from_comments():
    assert cpp_tokens("int a; // b\nint c; /* d\n*/ e") == ["int", "a", ";", "int", "c", ";", "e"]
    assert cpp_tokens("// a \\\nb") == cpp_tokens("// a ??/\nb") == []
    assert cpp_tokens("// a\rb") == cpp_tokens("// a\u2028b") == ["b"]
    assert cpp_tokens('"// a" b') == ['"// a"', "b"]
    assert "b" in python_tokens("# a\nb\n")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_code_is_that_of_plain_names(text, benign):
    scheduled = schedule(every_kind(_hostile(text), sort=True))
    assert cpp_tokens(without_sizes(native_program(scheduled).source)) == benign[0]
    for_triton = triton_schedule(every_kind(_hostile(text)))
    generated = triton.generate(for_triton).source
    ast.parse(generated)
    assert python_tokens(without_sizes(generated))[1:] == benign[1][1:]  # but for the name in its docstring
    launched = triton_program(for_triton).source
    assert python_tokens(without_sizes(launched))[1:] == benign[2][1:]
    assert len(generated) < 64 << 10


def _loaded(source: str, folder: Path) -> bool:
    """Build and load a translation unit; whether a canary ran."""
    (folder / "program.cpp").write_text(source, encoding="utf-8")
    command = [str(find_compiler()), "-std=c++20", "-trigraphs", "-O0", "-shared", "-fPIC", f"-I{RUNTIME}"]
    subprocess.run([*command, "program.cpp", "-o", "program.so"], cwd=folder, check=True, capture_output=True)
    load = "import ctypes; ctypes.CDLL('./program.so', 1)"
    subprocess.run([sys.executable, "-c", load], cwd=folder, check=True)
    return (folder / "ran").exists()


@needs_compiler
def test_nothing_runs_when_the_program_is_built_with_trigraphs(tmp_path):
    texts = canaries()
    graph = Graph("".join(texts))
    for number, text in enumerate(texts):
        x = graph.input(f"x{text}", (graph.symbol(f"n{number}{text}"), 8 + number))
        with graph.origin(text):
            graph.output(f"y{text}", (x * 1.5).tanh().sum(-1))
    source = cpp.generate(schedule(graph)).source
    assert source.count('int ran=std::fclose(std::fopen("ran","w"));') > len(texts) / 2
    assert source.count("open('ran','w')") > len(texts) / 2
    assert not _loaded(source, tmp_path)


@needs_compiler
def test_the_canary_runs_where_it_is_code(tmp_path):
    assert _loaded("// " + canaries()[0], tmp_path)
    (tmp_path / "ran").unlink()
    subprocess.run([sys.executable, "-c", "# " + canaries()[1]], cwd=tmp_path, check=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_printed_form_holds_every_name(text):
    graph = every_kind(_hostile(text))
    printed = print_graph(graph)
    printed.encode()
    assert all(line.isprintable() for line in printed.split("\n"))
    again = parse_graph(printed)
    assert print_graph(again) == printed
    assert list(again.inputs) == list(graph.inputs)
    assert again.symbols.keys() == graph.symbols.keys()


def test_a_line_of_code_with_a_name_in_it_is_refused():
    for code in ("int a;\nint b;", "int ä;", "a\x1b", "a\u2028"):
        with pytest.raises(EngineError, match="unescaped"):
            Lines().add(code)


def test_a_size_is_no_variable_of_a_loop():
    with pytest.raises(GraphError, match=r"does not begin with \$"):
        Graph().input("x", ('"$i0; int evil"', 4))
    with pytest.raises(GraphError, match="at most 256"):
        Graph().symbol("n" * 300)
    with pytest.raises(GraphError, match="begin with"):
        parse_graph('graph "g" { symbols "$a" >= 0 return }')
