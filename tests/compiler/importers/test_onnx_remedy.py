"""What an import that fails says to bind, and that binding it helps."""

from __future__ import annotations

import onnx
import pytest
from typer.testing import CliRunner

from kernels_hub.cli.onnx import onnx as command
from kernels_hub.compiler import import_onnx
from kernels_hub.compiler.errors import OnnxImportError
from kernels_hub.compiler.shortening import shortened
from tests.compiler.importers.test_onnx_variants import HALVED, parse

OPEN = HALVED.replace("[1, 1, h]", "[batch, 1, h]")
RESHAPED = "g (float[n] x, int64[1] to) => (float[m] y) { y = Reshape(x, to) }"
UNKNOWN = "g (float[n] x) => (float[n] y) { y = Nothing(x) }"
LOOP = """
g (float[n] x, int64 count, bool go) => (float[n] y) {
    y = Loop(count, go, x) <body = b (int64 i, bool more, float[n] a) => (bool on, float[n] c) {
        c = Nothing(a)
        on = Identity(more)
    }>
}
"""


def failed(text: str, **options) -> OnnxImportError:
    with pytest.raises(OnnxImportError) as raised:
        import_onnx(parse(text), **options)
    return raised.value


def test_the_fewest_axes_are_named_and_help():
    error = failed(OPEN)
    assert error.remedy == "it can be imported with dims={'h': 640} (on the command line: --dim h=640)"
    assert str(error).endswith(error.remedy)
    import_onnx(parse(OPEN), dims={"h": 640})


def test_values_are_asked_for_and_plain_numbers_take_the_declared_dtype():
    error = failed(RESHAPED, dims={"n": 4})
    assert error.remedy == "it can be imported with values={'to': …} (on the command line: --value to=…)"
    graph = import_onnx(parse(RESHAPED), dims={"n": 4}, values={"to": [4]})
    assert [*graph.inputs] == ["x"]
    floats = import_onnx(
        parse("g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"), values={"z": [1, 2]}
    )
    assert [*floats.inputs] == ["x"]


def test_nothing_is_promised_that_does_not_help():
    assert failed(UNKNOWN).remedy == ""


def test_a_loop_says_why_its_body_is_no_op():
    assert "(and as an op of its own: body > -> c: Nothing" in str(failed(LOOP))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Add(float32[2*(((((h + 1)//2 + 1)//2 + 1)//2 + 1)//2)])", "Add(float32[2*(… h …)])"),
        ('x[min(1, ((("a.b" + n + 1)//2 + 1)//2 + 1)//2 + 10)] (so)', 'x[min(… "a.b", n …)] (so)'),
        ("Where(bool[(N + 2)//3], float32[])", "Where(bool[(N + 2)//3], float32[])"),
        ("unbalanced ((a + 1)//2", "unbalanced ((a + 1)//2"),
    ],
)
def test_long_arithmetic_becomes_its_names(text: str, expected: str):
    assert shortened(text) == expected


def test_on_the_command_line(tmp_path):
    path = str(tmp_path / "m.onnx")
    onnx.save(parse(OPEN), path)
    result = CliRunner().invoke(command, ["check", path])
    assert result.exit_code == 1 and "--dim h=640" in result.stdout
    for option in (["--dim", "h=640"], ["--shape", "x=1x1x6"], ["--shape", "x=batch,1,6"]):
        assert CliRunner().invoke(command, ["check", path, *option]).exit_code == 0
    onnx.save(parse(RESHAPED), path)
    assert CliRunner().invoke(command, ["check", path, "--dim", "n=4", "--value", "to=[4]"]).exit_code == 0
    for option in (["--shape", "x"], ["--value", "to=four"], ["--value", "to=no.npy"], ["--dim", "n=x"]):
        assert CliRunner().invoke(command, ["check", path, *option]).exit_code == 2
