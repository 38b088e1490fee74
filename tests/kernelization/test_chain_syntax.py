"""Which children's calls a forward's source proves to be seen by the next one alone, and what is written for them."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import traceback
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.kernelization.chain_syntax import runs_of, with_calls
from kernels_hub.kernelization.decoration import innermost

_NUMBERS = itertools.count()


def _module(folder: Path, body: str, *, before: str = "", decorator: str = "") -> ModuleType:
    """A module with a class whose forward has these lines."""
    lines = "\n".join(f"        {line}" for line in body.strip("\n").splitlines())
    decorated = f"    {decorator}\n" if decorator else ""
    text = f"{before}\n\nclass Layer:\n{decorated}    def forward(self, x, flag=True):\n{lines}\n"
    path = folder / f"written_{next(_NUMBERS)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _forward(folder: Path, body: str, **around: str) -> FunctionType:
    forward = _module(folder, body, **around).Layer.forward
    assert isinstance(forward, FunctionType)
    return forward


@pytest.mark.parametrize(
    ("body", "runs"),
    [
        ("return self.b(self.a(x))", [("a", "b")]),
        ("y = self.a(x)\ny = self.b(y)\nreturn y + x", [("a", "b")]),
        ("y = self.a(x)\nreturn self.b(y)", [("a", "b")]),
        ("y = self.a(x)\nz = self.b(y)\nreturn z", [("a", "b")]),
        ("x = self.a(x)\nx = self.c(self.b(x))\nreturn x", [("a", "b", "c")]),
        ("if flag:\n    x = self.a(x)\n    x = self.b(x)\nreturn x", [("a", "b")]),
        ("for _ in range(2):\n    x = self.a(x)\n    x = self.b(x)\nreturn x", [("a", "b")]),
        ("return x + self.c(self.b(self.a(x)))", [("a", "b", "c")]),
        ("x = x * self.b(self.a(x)) + self.d(self.c(x))\nreturn x", [("a", "b"), ("c", "d")]),
        ("return self.c(self.b(self.a(x) + 1))", [("b", "c")]),
        ("with flag:\n    x = self.b(self.a(x))\n    x = self.c(x)\nreturn x", [("a", "b")]),
        ('"""What it does."""\nx = self.a(x)\n# and\nx = self.b(x)\nreturn x', [("a", "b")]),
    ],
)
def test_what_only_the_next_call_sees_is_a_run(
    tmp_path: Path, body: str, runs: list[tuple[str, ...]]
) -> None:
    assert sorted(runs_of(_forward(tmp_path, body))) == sorted(runs)


_PYTORCH = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nfrom torch.nn.functional import silu"


@pytest.mark.parametrize(
    ("body", "runs"),
    [
        ("return F.relu(self.b(self.a(x)))", [("a", "b", "F.relu")]),
        ("x = self.a(x)\nreturn F.relu(x, inplace=True)", [("a", "F.relu(inplace=True)")]),
        ("x = F.gelu(self.a(x), approximate='tanh')\nreturn x", [("a", "F.gelu(approximate='tanh')")]),
        ("return silu(self.a(x))", [("a", "F.silu")]),
        ("return torch.relu(self.a(x))", [("a", "torch.relu")]),
        ("return nn.functional.relu6(self.a(x))", [("a", "F.relu6")]),
        ("return torch.nn.functional.hardswish(self.a(x))", [("a", "F.hardswish")]),
        ("return self.b(F.relu(self.a(x)))", [("a", "F.relu", "b")]),
        ("return x + F.relu(self.a(x))", [("a", "F.relu")]),
        ("return F.softmax(self.a(x), dim=1)", []),
        ("return F.relu(self.a(x), flag)", []),
        ("return F.relu(self.a(x), inplace=flag)", []),
        ("return F.gelu(self.a(x), approximate='other')", []),
        ("F = self\nreturn F.relu(self.a(x))", []),
        ("import torch.nn.functional as F\nreturn F.relu(self.a(x))", []),
        ("y = self.a(x)\nz = F.relu(y)\nreturn y + z", []),
    ],
)
def test_activations_of_pytorch_are_calls_of_a_run(
    tmp_path: Path, body: str, runs: list[tuple[str, ...]]
) -> None:
    assert list(runs_of(_forward(tmp_path, body, before=_PYTORCH))) == runs


def test_a_function_of_somebody_elses_under_the_name_of_pytorchs_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x + 1)
    assert runs_of(_forward(tmp_path, "return F.relu(self.a(x))", before=_PYTORCH)) == ()


@pytest.mark.parametrize(
    "body",
    [
        "y = self.a(x)\nz = self.b(y)\nreturn z + y",  # seen again
        "y = self.a(x)\nz = self.b(y)\ny += 1\nreturn z",
        "y = self.a(x)\nz = self.b(y)\ndel y\nreturn z",
        "y = self.a(x)\ny = y + 1\ny = self.b(y)\nreturn y",
        "y = self.a(x)\nprint(y)\ny = self.b(y)\nreturn y",
        "y = self.a(x)\ny = self.b(x)\nreturn y",  # of something else
        "y = z = self.a(x)\ny = self.b(y)\nreturn y",
        "y, = self.a(x),\ny = self.b(y)\nreturn y",
        "y: object = self.a(x)\ny = self.b(y)\nreturn y",
        "y = self.a(x, 1)\ny = self.b(y)\nreturn y",  # of two arguments
        "y = self.a(x)\ny = self.b(y, flag=flag)\nreturn y",
        "y = self.a(*x)\ny = self.b(*y)\nreturn y",
        "y = self.a.c(x)\ny = self.b.c(y)\nreturn y",
        "y = self.a(x)\nseen = lambda: y\ny = self.b(y)\nreturn seen()",  # captured
        "def see():\n    return y\ny = self.a(x)\ny = self.b(y)\nreturn see()",
        "y = self.a(x)\ny = self.b(y)\nreturn [self for _ in (1,)], locals()",  # looks at its variables
        "import sys\ny = self.a(x)\ny = self.b(y)\nreturn sys._getframe().f_locals",
        "global y\ny = self.a(x)\ny = self.b(y)\nreturn y",
        "try:\n    x = self.a(x)\n    x = self.b(x)\nexcept ValueError:\n    pass\nreturn x",  # x tells how far it came
        "with flag:\n    x = self.a(x)\n    x = self.b(x)\nreturn x",  # it may swallow an exception
        "self = flag\nx = self.a(x)\nx = self.b(x)\nreturn x",
        "yield self.b(self.a(x))",
        "x = super().forward(x)\nreturn self.b(self.a(x))",
        "return self.a(x)",
    ],
)
def test_what_anything_else_may_see_is_none(tmp_path: Path, body: str) -> None:
    assert runs_of(_forward(tmp_path, body)) == ()


@pytest.mark.parametrize("imports", ["", "import math\n", "from math import sqrt\nimport math as other\n"])
def test_what_a_module_imports_is_compiled_as_it_is_there(tmp_path: Path, imports: str) -> None:
    body = """
'''Text
    with its own indent.'''
text = '''and
  another'''
x = self.b(self.a(x))
if flag:
    x = x + str(math.floor(2.5)) + text
return x
"""
    forward = _forward(tmp_path, body, before=imports or "class math:\n    floor = staticmethod(round)\n")
    if "other" in imports:
        forward.__globals__["math"] = forward.__globals__["other"]
    assert runs_of(forward) == (("a", "b"),)
    written = _with(forward, ("a", "b"))
    assert written(_Recorder(), "x") == forward(_Recorder(), "x")
    assert written.__doc__ == forward.__doc__


def test_a_text_that_is_not_the_code_proves_nothing(tmp_path: Path) -> None:
    module = _module(tmp_path, "return self.b(self.a(x))")
    path = Path(str(module.__file__))
    path.write_text(path.read_text().replace("self.b(self.a(x))", "self.a(self.b(x))"))
    assert runs_of(module.Layer.forward) == ()


def test_of_a_decorated_forward_the_function_inside_counts(tmp_path: Path) -> None:
    before = "import functools\n\ndef kept(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a)\n    return g\n"
    forward = _forward(tmp_path, "return self.b(self.a(x))", before=before, decorator="@kept")
    assert runs_of(forward) == (("a", "b"),)
    recorder = _Recorder()
    assert _with(forward, ("a", "b"))(recorder, "x") == forward(_Recorder(), "x")
    assert recorder.calls == ["a+b"]
    hidden = _forward(
        tmp_path,
        "return self.b(self.a(x))",
        before=before.replace("    @functools.wraps(f)\n", ""),
        decorator="@kept",
    )
    assert runs_of(hidden) == ()


def test_a_forward_without_source_proves_nothing() -> None:
    namespace: dict[str, FunctionType] = {}
    exec("def forward(self, x):\n    return self.b(self.a(x))\n", namespace)
    assert runs_of(namespace["forward"]) == ()


class _Recorder:
    """Stands for a module: its children write down how they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        if len(name) > 1:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, value: str) -> str:
        self.calls.append(name)
        return f"{name}({value})"


def _chained(names: tuple[str, ...]) -> object:
    def call(self: _Recorder, value: str) -> str:
        self.calls.append("+".join(names))
        for name in names:
            value = f"{name}({value})"
        return value

    return call


def _with(forward: FunctionType, *chains: tuple[str, ...]) -> FunctionType:
    places = {}
    for names in chains:
        places[names] = f"_place_{next(_NUMBERS)}"
        innermost(forward).__globals__[places[names]] = _chained(names)
    return with_calls(forward, places)


def test_a_chain_takes_the_place_of_its_calls_alone(tmp_path: Path) -> None:
    body = "y = self.a(x)\ny = self.b(y)\ny = self.c(self.d(y))\ny = self.e(y)\nreturn y"
    forward = _forward(tmp_path, body)
    for chains, calls in (
        ([("a", "b")], ["a+b", "d", "c", "e"]),
        ([("b", "d")], ["a", "b+d", "c", "e"]),
        ([("c", "e")], ["a", "b", "d", "c+e"]),
        ([("a", "b"), ("d", "c")], ["a+b", "d+c", "e"]),
        ([("a", "b", "d", "c", "e"), ("a", "b")], ["a+b+d+c+e"]),
        ([("b", "a")], ["a", "b", "d", "c", "e"]),
    ):
        recorder = _Recorder()
        assert _with(forward, *chains)(recorder, "x") == "e(c(d(b(a(x)))))"
        assert recorder.calls == calls


def test_defaults_and_lines_stay(tmp_path: Path) -> None:
    forward = _forward(
        tmp_path, "y = self.a(x)\n\ny = self.b(y)\nif flag:\n    raise ValueError(y)\nreturn y"
    )
    written = _with(forward, ("a", "b"))
    with pytest.raises(ValueError, match="b\\(a\\(x\\)\\)") as raised:
        written(_Recorder(), "x")
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (frame.filename, frame.line, frame.name) == (
        forward.__code__.co_filename,
        "raise ValueError(y)",
        "forward",
    )
    assert written(_Recorder(), "x", False) == "b(a(x))"
    assert written.__code__.co_qualname == "Layer.forward"


_VARIABLES = ("x", "y", "z")
_EXPRESSION = st.recursive(
    st.sampled_from(_VARIABLES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("abcd"), inner).map(lambda of: f"self.{of[0]}({of[1]})"),
        st.tuples(inner, inner).map(lambda of: f"({of[0]} + {of[1]})"),
    ),
    max_leaves=4,
)
_STATEMENT = st.one_of(
    st.tuples(st.sampled_from(_VARIABLES), st.sampled_from("abcd"), st.sampled_from(_VARIABLES)).map(
        lambda of: f"{of[0]} = self.{of[1]}({of[2]})"
    ),
    st.tuples(st.sampled_from(_VARIABLES), _EXPRESSION).map(lambda of: f"{of[0]} = {of[1]}"),
    st.tuples(st.sampled_from(_VARIABLES), _EXPRESSION).map(lambda of: f"{of[0]} += {of[1]}"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STATEMENT, min_size=1, max_size=8), st.booleans(), _EXPRESSION)
def test_any_forward_returns_the_same_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, statements: list[str], nests: bool, result: str
) -> None:
    indent = "    " if nests else ""
    lines = [
        "y = x",
        "z = x",
        *(["for _ in range(2):"] if nests else []),
        *(indent + line for line in statements),
    ]
    forward = _forward(tmp_path_factory.getbasetemp(), "\n".join([*lines, f"return {result}"]))
    want, got = _Recorder(), _Recorder()
    parts = {
        run[begin:end]
        for run in runs_of(forward)
        for begin in range(len(run))
        for end in range(begin + 2, len(run) + 1)
    }
    expected = forward(want, "x")
    for chains in [[part] for part in sorted(parts)] + [sorted(parts)]:
        got.calls.clear()
        assert _with(forward, *chains)(got, "x") == expected
        assert "+".join(got.calls) == "+".join(want.calls)
