"""Forward substitution: what goes, what stays, and that random functions do the same in the same order."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.kernelization.substitution import substituted


def body(source: str) -> list[str]:
    return [ast.unparse(one) for one in substituted(ast.parse(source).body)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = f(x)\ny = g(a)", ["y = g(f(x))"]),
        ("a: Tensor = f(x)\nb = g(x)\nreturned(a * b)", ["returned(f(x) * g(x))"]),
        ("x = f(x)\nx = g(x)\nx = h(x)", ["x = h(g(f(x)))"]),
        ("x = f(x)\ny, x = x.chunk(2)\nu(x, y)", ["y, x = f(x).chunk(2)", "u(x, y)"]),
        ("a = f(x)\nself.down.forward(a)", ["self.down.forward(f(x))"]),
        ("a = f(x)\ny = w[a]", ["y = w[f(x)]"]),
        ("a = f(x)\nself.kept = a", ["self.kept = f(x)"]),
    ],
)
def test_what_goes(source: str, expected: list[str]):
    assert body(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "a = f(x)\ny = a + a",
        "a = f(x)\ny = g(a)\nz = a",
        "a = f(x)\ny = self.state + a",
        "a = f(x)\ny = g(x) + a",
        "a = f(x)\ny = a if x else x",
        "a = f(x)\ny = x and a",
        "a = f(x)\ny = lambda: a",
        "a = f(x)\ny = [a for _ in x]",
        "a = f(x)\nif x:\n    y = a",
        "a = f(x)\ny += a",
        "a = (b := f(x))\ny = g(a)",
        "a = f(x)\nz = h(x)\ny = g(a)",
    ],
)
def test_what_stays(source: str):
    """What is read again, or not for sure, or after something that could tell."""
    assert body(source) == [ast.unparse(one) for one in ast.parse(source).body]


def test_the_statements_given_stay_as_they_are():
    statements = ast.parse("a = f(x)\ny = g(a)").body
    before = [ast.dump(one) for one in statements]
    substituted(statements)
    assert [ast.dump(one) for one in statements] == before


NAMES = "abcx"
LEAVES = st.sampled_from([*NAMES, "1", "self.state"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("f({})".format, inner),
        st.builds("self.g({}, {})".format, inner, inner),
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} and {})".format, inner, inner),
    ),
    max_leaves=4,
)
STATEMENTS = st.lists(st.tuples(st.sampled_from([*NAMES, "a, b"]), VALUES), min_size=2, max_size=6)


class Noting:
    """Each call changes the state and is noted, so that another order is another result."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.state = 3

    def g(self, *args: int) -> int:
        self.calls.append(args)
        self.state = self.state * 7 % 101
        return sum(args) % 97 + len(self.calls)

    def run(self, statements: list[ast.stmt]) -> object:
        code = compile(ast.Module(statements, type_ignores=[]), "<test>", "exec")
        names: dict[str, Any] = {"self": self, "f": self.g, "a": 2, "b": 5, "c": 11, "x": 13}
        exec(code, names)
        return names["result"], self.calls, self.state


@given(STATEMENTS, VALUES)
def test_random_functions_do_the_same_in_the_same_order(assigned: list[tuple[str, str]], last: str):
    lines = [
        f"{target} = {value}, f({value})" if "," in target else f"{target} = {value}"
        for target, value in assigned
    ]
    statements = ast.parse("\n".join([*lines, f"result = {last}"])).body
    fewer = [ast.fix_missing_locations(one) for one in substituted(statements)]
    assert Noting().run(fewer) == Noting().run(statements)
