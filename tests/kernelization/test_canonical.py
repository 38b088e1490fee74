"""The canonical form: what it drops, what it keeps, and that renaming is never a disguise."""

from __future__ import annotations

import ast
import keyword
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_hub.kernelization.canonical import NoCanonicalForm, canonical_form, first_difference

NORM = """
def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
    '''Normalise.'''
    input_dtype = hidden_states.dtype  # kept for the end
    hidden_states = hidden_states.to(torch.float32)
    return self.weight * hidden_states.to(input_dtype)
"""


EQUAL = {
    "names of parameters and variables": """
def call(module, x):
    d = x.dtype
    x = x.to(torch.float32)
    return module.weight * x.to(d)
""",
    "annotations, decorators, layout, indentation": """
    @no_grad
    def forward(self, x):
        d: torch.dtype = x.dtype
        y: torch.Tensor
        x = (
            x.to(torch.float32)
        )
        return (self.weight
                * x.to(d))
""",
}

DIFFERENT = {
    "order of operands": (
        "self.weight * hidden_states.to(input_dtype)",
        "hidden_states.to(input_dtype) * self.weight",
    ),
    "place of a cast": (
        "self.weight * hidden_states.to(input_dtype)",
        "(self.weight * hidden_states).to(input_dtype)",
    ),
    "an attribute": ("self.weight", "self.scale"),
    "a free name's attribute": ("torch.float32", "torch.float16"),
    "a free name": ("torch.float32", "xtorch.float32"),
    "a default": ("hidden_states: torch.Tensor)", "hidden_states=None)"),
    "a parameter more": ("hidden_states: torch.Tensor)", "hidden_states, scale)"),
    "the kind of a parameter": ("hidden_states: torch.Tensor)", "*hidden_states)"),
    "which variable": ("hidden_states.to(input_dtype)", "hidden_states.to(hidden_states)"),
    "a statement less": ("    hidden_states = hidden_states.to(torch.float32)\n", ""),
    "async": ("def forward", "async def forward"),
}


@pytest.mark.parametrize("source", EQUAL.values(), ids=EQUAL)
def test_what_does_not_count(source: str) -> None:
    assert canonical_form(source).lines == canonical_form(NORM).lines


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_what_counts(change: tuple[str, str]) -> None:
    changed = NORM.replace(*change)
    assert changed != NORM
    assert canonical_form(changed).lines != canonical_form(NORM).lines


def test_keyword_only_parameters_keep_their_names() -> None:
    one = canonical_form("def f(x, *, scale=1): return x * scale")
    assert one.lines == canonical_form("def f(y, *, scale=1): return y * scale").lines
    assert one.lines != canonical_form("def f(x, *, factor=1): return x * factor").lines


SCOPES = {
    "comprehension": (
        "def f(x): return [torch for torch in x] + [torch]",
        "def f(x): return [other for other in x] + [torch]",
        {"torch"},
    ),
    "first iterable is outside": (
        "def f(x): return [x for x in x]",
        "def f(y): return [z for z in y]",
        set(),
    ),
    "lambda": ("def f(x): return (lambda x: x + y)(x)", "def f(a): return (lambda b: b + y)(a)", {"y"}),
    "lambda's default is outside": (
        "def f(x): return lambda x=x: x",
        "def f(a): return lambda b=a: b",
        set(),
    ),
    "walrus leaves a comprehension": (
        "def f(x): return [n := y for y in x] + [n]",
        "def f(x): return [m := z for z in x] + [m]",
        set(),
    ),
    "names of a loop": (
        "def f(x):\n    for i, t in x:\n        y = t\n    return y, i",
        "def f(x):\n    for a, b in x:\n        c = b\n    return c, a",
        set(),
    ),
    "dictionary comprehension": (
        "def f(x): return {k: v for k, v in x for x in v}",
        "def f(y): return {a: b for a, b in y for c in b}",
        set(),
    ),
}


@pytest.mark.parametrize(("one", "other", "free"), SCOPES.values(), ids=SCOPES)
def test_scopes(one: str, other: str, free: set[str]) -> None:
    assert canonical_form(one).lines == canonical_form(other).lines
    assert canonical_form(one).free == canonical_form(other).free == free


def test_a_name_that_is_free_outside_a_comprehension_is_not_renamed() -> None:
    # The same shape, but the last name means the global `torch` in one and the global `numpy` in the other.
    one = canonical_form("def f(x): return [torch for torch in x] + [torch]")
    other = canonical_form("def f(x): return [numpy for numpy in x] + [numpy]")
    assert one.lines != other.lines


def test_attributes_of_self() -> None:
    form = canonical_form(
        "def forward(self, x): self.count = len(x.shape); return self.act(x.weight) + self.b.c"
    )
    assert form.self_attributes == {"count", "act", "b"}
    assert form.free == {"len"}


@pytest.mark.parametrize(
    "statement",
    [
        "import torch",
        "from torch import nn",
        "global x",
        "def inner(): pass",
        "class Inner: pass",
        "try: pass\n    finally: pass",
    ],
)
def test_statements_without_a_form(statement: str) -> None:
    with pytest.raises(NoCanonicalForm, match="do not compare"):
        canonical_form(f"def f(self):\n    {statement}\n")


@pytest.mark.parametrize("source", ["x = 1", "", "def f(): pass\ndef g(): pass", "lambda x: x"])
def test_not_one_function(source: str) -> None:
    with pytest.raises(NoCanonicalForm, match="not one function"):
        canonical_form(source)


def test_syntax_errors_are_pythons_own() -> None:
    with pytest.raises(SyntaxError):
        canonical_form("def f(:")


def test_the_first_difference_in_the_names_of_the_source() -> None:
    changed = NORM.replace("hidden_states.to(torch.float32)", "hidden_states.float()")
    equal, sentence = first_difference(canonical_form(NORM), canonical_form(changed))
    assert equal == 2
    assert sentence == (
        "statement 2 is `hidden_states = hidden_states.float()`, "
        "not `hidden_states = hidden_states.to(torch.float32)`"
    )


def test_the_first_difference_when_one_is_longer() -> None:
    short, long = canonical_form("def f(x): pass"), canonical_form("def f(x):\n    pass\n    return x")
    assert first_difference(short, long) == (2, "it goes on with `return x`")
    assert first_difference(long, short) == (2, "it lacks `return x`")


NAMES = st.sampled_from(["a", "b", "c", "x", "torch_", "self_"])
EXPRESSIONS = st.recursive(
    st.one_of(NAMES, st.sampled_from(["torch", "1", "2.5", "None"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/@"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, NAMES).map(
            lambda t: f"{t[0]}.{t[1]}" if t[0].isidentifier() else f"({t[0]}).{t[1]}"
        ),
        st.tuples(inner, inner).map(lambda t: f"torch.f({t[0]}, k={t[1]})"),
        st.tuples(inner, NAMES, inner).map(lambda t: f"[{t[0]} for {t[1]} in {t[2]}]"),
        st.tuples(NAMES, inner).map(lambda t: f"(lambda {t[0]}: {t[1]})"),
    ),
    max_leaves=8,
)
FUNCTIONS = st.builds(
    lambda parameters, assignments, result: (
        f"def f({', '.join(parameters)}):\n"
        + "".join(f"    {name} = {value}\n" for name, value in assignments)
        + f"    return {result}\n"
    ),
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.lists(st.tuples(NAMES, EXPRESSIONS), max_size=3),
    EXPRESSIONS,
)


@settings(deadline=None)
@given(FUNCTIONS, st.permutations(["p", "q", "r", "s", "t", "u"]))
def test_renaming_every_variable_keeps_the_form(source: str, names: list[str]) -> None:
    """Oracle: Python's own symbol table says which names of the function are bound."""
    tree = ast.parse(source)
    bound = _bound_anywhere(tree)
    renaming = dict(zip(sorted(bound), names, strict=False))
    free = canonical_form(source).free
    if free & bound:  # the same name is bound in one scope and free in another: renaming by name is wrong
        return
    renamed = ast.unparse(_Rename(renaming).visit(ast.parse(source)))
    assert canonical_form(renamed).lines == canonical_form(source).lines


@settings(deadline=None)
@given(FUNCTIONS, st.dictionaries(NAMES, st.sampled_from(["a", "b", "c", "torch", "other"])))
def test_equal_forms_have_equal_bytecode(source: str, names: dict[str, str]) -> None:
    """Renamings that merge, capture or free names: where the form stays equal, so does the program."""
    try:
        renamed = ast.unparse(_Rename(names).visit(ast.parse(source)))
        code = _code(renamed)
    except SyntaxError:  # two parameters of one name
        return
    if canonical_form(source).lines == canonical_form(renamed).lines:
        assert _code(source) == code


def _bound_anywhere(tree: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        assert not any(keyword.iskeyword(name) for name in names.values())
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg))


def _code(source: str) -> list[tuple[bytes, tuple[str, ...]]]:
    """What Python makes of a source, variables by number and free names by name; lambdas included."""
    namespace: dict[str, object] = {}
    exec(source, namespace)
    pending, found = [namespace["f"].__code__], []  # type: ignore[attr-defined]
    while pending:
        code = pending.pop()
        found.append((code.co_code, code.co_names))
        pending.extend(const for const in code.co_consts if isinstance(const, CodeType))
    return found


def test_a_default_where_the_other_requires_an_argument_serves() -> None:
    more = canonical_form("def f(self, x, y=None, z=1): return x")
    for source in ("def f(self, x, y, z): return x", "def f(self, x, y, z=1): return x"):
        assert more.serves(canonical_form(source))
        assert not canonical_form(source).serves(more)
    for source in (
        "def f(self, x, y, z=2): return x",
        "def f(self, x, y=None, z=1): return y",
        "def f(self, x, y, *, z=1): return x",
        "def f(self, x, y): return x",
    ):
        assert not more.serves(canonical_form(source))


def test_the_number_of_variables_does_not_count():
    stepwise = """
    def forward(self, x):
        gate = self.act_fn(self.gate_proj(x))
        up = self.up_proj(x)
        y = self.down_proj(gate * up)
        return y
    """
    at_once = "def forward(self, h): return self.down_proj(self.act_fn(self.gate_proj(h)) * self.up_proj(h))"
    one, other = canonical_form(stepwise), canonical_form(at_once)
    assert one.serves(other) and other.serves(one)
    assert len(one.lines) == 5, "messages name the statements of the source"
    swapped = canonical_form(
        at_once.replace("gate_proj", "_").replace("up_proj", "gate_proj").replace("_(", "up_proj(")
    )
    assert not swapped.serves(one)
