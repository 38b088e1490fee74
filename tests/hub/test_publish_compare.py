"""Comparing releases: each kind of change asks for its part of the version."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.hub.compare import _accepts_the_same, compare
from kernels_hub.repository.interface import Parameter, _parameters, read_interface

FILES = {
    "kernel.toml": """
[kernel]
name = "scale"
version = "1.2.0"
license = "MIT"
summary = "scales"
layers = ["Scale"]
functions = ["scale"]

[backends.cpu]
sources = ["package", "cpu"]

[backends.cuda]
sources = ["package", "triton"]
python-depends = ["triton"]
archs = ["8.0", "9.0"]
""",
    "package/__init__.py": "from . import layers\nfrom .functions import scale\n",
    "package/functions.py": "def scale(x, by=2, *, out=None): ...\n",
    "package/layers.py": (
        "from torch import nn\nclass Scale(nn.Module):\n    has_backward = True\n    def forward(self, x, by=2): ...\n"
    ),
    "cpu/kernels.py": "one = 1\n",
    "triton/kernels.py": "two = 2\n",
}
LAYER, FUNCTION = "package/layers.py", "package/functions.py"
SCALE = "def scale(x, by=2, *, out=None): ..."
OTHER = "class Other(nn.Module):\n    def forward(self, y): ...\n"

# what -> file, (old text, new text), bump, changes (those of a kind in one go)
CASES: dict[str, tuple[str, tuple[str, str], str, list[str]]] = {
    "nothing": (LAYER, ("", ""), "none", []),
    "a comment": ("cpu/kernels.py", ("one", "# x\none"), "patch", []),
    "annotations": (FUNCTION, ("x,", "x: int,"), "patch", []),
    "layer renamed": ("kernel.toml", ('"Scale"', '"Other"'), "major", ["layer Scale is gone", "layer Other(…) is new"]),
    "layer added": (
        "kernel.toml", ('["Scale"]', '["Scale", "Other"]'), "minor", ["layer Other(…) is new"],
    ),
    "argument renamed": (
        LAYER, ("x, by", "y, by"), "major", ["layer Scale takes (y, by=2), took (x, by=2)"],
    ),
    "default": (LAYER, ("by=2", "by=3"), "major", ["layer Scale takes (x, by=3), took (x, by=2)"]),
    "argument of a layer": (
        LAYER, ("by=2", "by=2, c=1"), "major", ["layer Scale takes (x, by=2, c=1), took (x, by=2)"],
    ),
    "flag lost": (LAYER, ("= True", "= False"), "major", ["layer Scale has has_backward=False, had True"]),
    "flag computed": (
        LAYER, ("= True", "= bool(1)"), "patch", ["layer Scale computes has_backward from bool(1), was True"],
    ),
    "flag won": (
        LAYER, ("    has_backward", "    can_torch_compile = True\n    has_backward"), "minor",
        ["layer Scale has can_torch_compile=True, had False"],
    ),
    "optional argument": (
        FUNCTION, ("out=None", "out=None, at=0"), "minor",
        ["function scale takes (x, by=2, *, out=None, at=0), took (x, by=2, *, out=None)"],
    ),
    "optional positional": (
        FUNCTION, ("by=2", "by=2, c=3"), "minor",
        ["function scale takes (x, by=2, c=3, *, out=None), took (x, by=2, *, out=None)"],
    ),
    "required argument": (
        FUNCTION, ("out=None", "out=None, at"), "major",
        ["function scale takes (x, by=2, *, out=None, at), took (x, by=2, *, out=None)"],
    ),
    "required positional": (
        FUNCTION, ("by=2", "by"), "major",
        ["function scale takes (x, by, *, out=None), took (x, by=2, *, out=None)"],
    ),
    "keyword gone": (FUNCTION, (", *, out=None", ""), "major",
                     ["function scale takes (x, by=2), took (x, by=2, *, out=None)"]),
    "function gone": ("kernel.toml", ('["scale"]', "[]"), "major", ["function scale is gone"]),
    "variant gone": (
        "kernel.toml", ("backends.cpu", "backends.rocm"), "major",
        ["variant torch-cpu is gone", "variant torch-rocm is new"],
    ),
    "variant added": (
        "kernel.toml", ("[backends.cuda]", '[backends.rocm]\nsources = ["package"]\n[backends.cuda]'), "minor",
        ["variant torch-rocm is new"],
    ),
    "dependency": (
        "kernel.toml", ('["triton"]', '["triton", "einops"]'), "major",
        ["needs the Python package einops (in torch-cuda)"],
    ),
    "no dependency": (
        "kernel.toml", ('python-depends = ["triton"]', ""), "patch",
        ["no longer needs the Python package triton (in torch-cuda)"],
    ),
    "architecture lost": (
        "kernel.toml", ('"8.0", ', ""), "major", ["architectures are 9.0, were 8.0, 9.0 (in torch-cuda)"],
    ),
    "any architecture": (
        "kernel.toml", ('archs = ["8.0", "9.0"]', ""), "minor",
        ["architectures are any, were 8.0, 9.0 (in torch-cuda)"],
    ),
    "licence": ("kernel.toml", ("MIT", "GPL-3.0"), "major", ["the licence is GPL-3.0, was MIT"]),
    "name": ("kernel.toml", ('"scale"\nversion', '"other"\nversion'), "major", ["the kernel is named 'other', was 'scale'"]),
}  # fmt: skip


def _write(root: Path) -> Path:
    for inside, text in FILES.items():
        (root / inside).parent.mkdir(parents=True, exist_ok=True)
        (root / inside).write_text(text)
    return root


@pytest.mark.parametrize("case", CASES)
def test_change(case: str, tmp_path: Path):
    file, (old, new), bump, changes = CASES[case]
    before, after = _write(tmp_path / "a"), _write(tmp_path / "b")
    text = (after / file).read_text()
    assert old in text
    (after / file).write_text(text.replace(old, new, 1))
    found = compare(read_interface(before), read_interface(after))
    assert [str(change) for change in found.changes] == changes
    assert found.bump == bump


def test_files(tmp_path: Path):
    before, after = _write(tmp_path / "a"), _write(tmp_path / "b")
    (after / "cpu" / "kernels.py").rename(after / "cpu" / "other.py")
    (after / "package" / "layers.py").write_text(FILES[LAYER] + "# more\n")
    found = compare(read_interface(before), read_interface(after))
    assert {(file.path, file.change) for file in found.files} == {
        ("build/torch-cpu/kernels.py", "removed"),
        ("build/torch-cpu/other.py", "added"),
        ("build/torch-cpu/layers.py", "changed"),
        ("build/torch-cuda/layers.py", "changed"),
    }


@pytest.mark.parametrize(
    ("case", "old", "next_version", "allowed", "refused"),
    [
        ("layer renamed", "1.2.3", "2.0.0", ["2.0.0", "3.1.0"], ["1.2.4", "1.3.0"]),
        ("layer renamed", "0.2.3", "0.3.0", ["0.3.0", "1.0.0"], ["0.2.4"]),
        ("layer added", "1.2.3", "1.3.0", ["1.2.4", "1.3.0"], []),
        ("a comment", "1.2.3", "1.2.4", ["1.2.4"], []),
        ("nothing", "1.2.3", "1.2.3", ["1.2.4"], []),
    ],
)
def test_versions(case, old, next_version, allowed, refused, tmp_path: Path):
    file, (before_text, after_text), _, _ = CASES[case]
    before, after = _write(tmp_path / "a"), _write(tmp_path / "b")
    (after / file).write_text((after / file).read_text().replace(before_text, after_text, 1))
    found = compare(read_interface(before), read_interface(after))
    assert found.next_version(old) == next_version
    assert all(found.allows(old, version) for version in allowed)
    assert not any(found.allows(old, version) for version in refused)


# -- functions: what may be added without breaking a call ---------------------------------------------


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """Arguments of a function, named a to e."""
    names = list("abcde")
    positional = [
        names.pop(0) if draw(st.booleans()) else names.pop() for _ in range(draw(st.integers(0, 3)))
    ]
    first_default = draw(st.integers(0, len(positional)))
    parts = [f"{n}={draw(st.integers(0, 1))}" if i >= first_default else n for i, n in enumerate(positional)]
    if parts and draw(st.booleans()):
        parts.insert(draw(st.integers(1, len(parts))), "/")
    keyword_only = [names.pop(0) for _ in range(draw(st.integers(0, 2))) if names]
    star = draw(st.booleans())
    if star or keyword_only:
        parts.append("*rest" if star else "*")
    parts += [f"{name}={draw(st.integers(0, 1))}" if draw(st.booleans()) else name for name in keyword_only]
    if draw(st.booleans()):
        parts.append("**more")
    return ", ".join(parts)


def _calls() -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Every call with up to three positional and two named arguments."""
    named = [(), *itertools.combinations("abcef", 1), *itertools.combinations("abcf", 2)]
    return [
        (tuple(range(10, 10 + count)), {name: 20 + i for i, name in enumerate(names)})
        for count in (0, 1, 2, 4)
        for names in named
    ]


def _meaning(function: Callable[..., dict], call: tuple[tuple[int, ...], dict[str, int]]) -> dict | None:
    """What each argument is in a call; None for a call that does not fit."""
    try:
        return function(*call[0], **call[1])
    except TypeError:
        return None


def _function(text: str) -> tuple[tuple[Parameter, ...], Callable[..., dict]]:
    node = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    space: dict = {}
    exec(f"def f({text}): return locals()", space)
    return _parameters(node.args), space["f"]


def _extended(text: str) -> list[str]:
    """Every signature with one thing more in it."""
    parts = text.split(", ") if text else []
    found = []
    for addition in ("f=0", "f", "*", "*rest", "**more", "/"):
        for place in range(len(parts) + 1):
            candidate = ", ".join([*parts[:place], addition, *parts[place:]])
            try:
                compile(f"def f({candidate}): ...", "f", "exec")
            except SyntaxError:
                continue
            found.append(candidate)
    return found


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two signatures; mostly one and the same with something added, which is likelier to break nothing."""
    old = draw(signatures())
    if draw(st.integers(0, 4)) == 0:
        return old, draw(signatures())
    return old, draw(st.sampled_from(_extended(old)))


@settings(max_examples=300, deadline=None)
@given(pairs())
def test_a_minor_change_breaks_no_call(pair: tuple[str, str]):
    """Held against Python itself: every call that fitted still fits, and means the same."""
    old_text, new_text = pair
    (old, old_function), (new, new_function) = _function(old_text), _function(new_text)
    if not _accepts_the_same(old, new):
        assert old != new
        return
    for call in _calls():
        before = _meaning(old_function, call)
        if before is not None:
            after = _meaning(new_function, call)
            assert after is not None, (old_text, new_text, call)
            assert {name: after.get(name) for name in before} == before, (old_text, new_text, call)


def test_the_comparison_with_python_finds_what_breaks():
    (_, old), (_, new) = _function("a, **more"), _function("a, b=1, **more")
    assert _meaning(old, ((1,), {"b": 2})) != _meaning(new, ((1,), {"b": 2}))
