"""What a search found, in an emitted repository: taken, kept, added to; and refused where it is of another layer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernels_hub.compiler import Graph, print_graph
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.export.tuned import Tuned, chosen, merged, read_tuned, with_tuned, write_tuned


def graph(size: int = 8, weight: str = "weight", output: str = "y") -> Graph:
    made = Graph("block")
    x = made.input("x", ("rows", size))
    made.output(output, x @ made.parameter(weight, (size, 4)))
    return made


CPU = Tuned(
    "float32", "avx512", print_graph(graph()), {"grain": 256}, {"rows": 3}, 1e-5, 2e-5, "here", "by hand"
)
GPU = replace(CPU, arch="sm_90", choices={"block": 512, "tile": "64x128x32"})


def test_what_is_written_is_read(tmp_path: Path):
    assert read_tuned(tmp_path) == ()
    write_tuned(tmp_path, ())
    assert not any(tmp_path.iterdir())
    write_tuned(tmp_path, (CPU, GPU))
    assert read_tuned(tmp_path) == (CPU, GPU)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2, "tuned": []}', '{"format": 1, "tuned": [{"what": 1}]}']
)
def test_a_file_that_makes_no_sense(text: str, tmp_path: Path):
    (tmp_path / "tuned.json").write_text(text)
    with pytest.raises(CompilerError, match=r"tuned\.json: .*; delete it, and tune again"):
        read_tuned(tmp_path)


def test_the_table_of_knobs():
    table = with_tuned(
        {"avx512": {"flags": ["-O3"]}, "sm_90": {"stages": 3, "block": 0, "product": None}}, [CPU, GPU]
    )
    assert table["avx512"]["flags"] == ["-O3"]
    assert table["avx512"]["tuned"]["float32"]["times_faster"] == 2
    assert (
        table["sm_90"]["block"] == 512
        and table["sm_90"]["product"] == [64, 128, 32]
        and table["sm_90"]["stages"] == 3
    )
    half = replace(CPU, dtype="bfloat16", default_seconds=0.0)
    row = with_tuned({}, [CPU, half])["avx512"]["tuned"]
    assert set(row) == {"float32", "bfloat16"} and row["bfloat16"]["times_faster"] is None


def test_one_for_each_program():
    assert chosen([CPU, GPU], "float32", gpu=False) is CPU
    assert chosen([CPU, GPU], "float32", gpu=True) is GPU
    assert chosen([CPU, GPU], "float16", gpu=True) is None
    better = replace(CPU, choices={"grain": 512}, seconds=5e-6)
    assert merged([CPU, GPU], [better]) == (better, GPU)
    # The same again, remembered and not measured: what is known of it stays.
    assert merged([CPU], [replace(CPU, default_seconds=0.0)]) == (CPU,)
    assert merged([], [replace(CPU, default_seconds=0.0)])[0].times_faster is None


OTHERS = {
    "inputs": (graph(16), "has the inputs .*16.*: tune it again"),
    "outputs": (graph(output="z"), "has the outputs .*z.*: tune it again"),
    "parameters": (graph(weight="bias"), "reads bias, which it has not: tune it again"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_of_another_layer(case: str):
    other, message = OTHERS[case]
    with pytest.raises(CompilerError, match=message):
        replace(CPU, graph=print_graph(other)).graph_for(graph())


def test_of_this_layer():
    assert print_graph(CPU.graph_for(graph())) == CPU.graph


def test_fields_of_wrong_kinds_are_named(tmp_path):
    for row, place in (
        ({"sizes": {"n": "many"}}, "sizes"),
        ({"seconds": None}, "seconds"),
        ({"dtype": 5}, "dtype"),
    ):
        document = {"format": 1, "tuned": [{"dtype": "", "arch": "avx2", "graph": "", **row}]}
        (tmp_path / "tuned.json").write_text(json.dumps(document))
        with pytest.raises(CompilerError, match=rf"at `\$\.tuned\[0\]\.{place}"):
            read_tuned(tmp_path)
