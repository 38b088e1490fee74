"""Finds the children that a forward calls one after the other, and writes the forward that calls something for them.

    out = self.conv1(x)
    out = self.bn1(out)             out = _chain(self, x)
    out = self.relu(out)     ->     out = self.conv2(out)
    out = self.conv2(out)

A run is a sequence of calls of children, and of PyTorch's activations (`chain_functions`), with one argument, each of
the result of the one before, which nothing else in the forward sees: a call inside another's argument, or a variable
that the next statement replaces or alone reads. It is proven by the source text, and only where compiling that text
gives the code that the forward has. What is written in its place keeps the lines of the source, so that tracebacks and
debuggers show them.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from kernels_hub.kernelization.chain_functions import function_name, is_function
from kernels_hub.kernelization.decoration import inner_function, innermost, with_inner

Names = tuple[str, ...]

_SEES_VARIABLES = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "breakpoint", "_getframe", "currentframe"}
)
"""A forward that names one of these may see what its variables hold between two calls."""
_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass
class _Run:
    """Calls in order, and what holds them: statements of one list, or one expression.

    first: what the first call gets. named: the names of calls, of these among others.
    """

    calls: list[ast.Call]
    first: ast.expr
    named: Mapping[ast.expr, str]
    statements: list[tuple[ast.Assign | ast.Return, int]] = field(default_factory=list)
    """Each with the number of calls up to its end; none where it is part of a larger expression."""
    body: list[ast.stmt] = field(default_factory=list)

    @property
    def names(self) -> Names:
        return tuple(self.named[call] for call in self.calls)


@functools.lru_cache(maxsize=4096)
def runs_of(forward: FunctionType) -> tuple[Names, ...]:
    """The children and functions that a forward calls one after the other, two at least; none where its source proves
    nothing.

    Of a decorated forward, those of the function inside.
    """
    forward = innermost(forward)
    proven = _proven(forward)
    return () if proven is None else tuple(run.names for run in _Search(proven.tree, forward).runs)


def with_calls(forward: FunctionType, chains: Mapping[Names, str]) -> FunctionType:
    """A copy of a forward that calls globals for chains of children, with its `self`, what the first one gets, and the
    functions among them.

    chains: parts of its runs -> the names of the globals, of the function inside decorators. A chain that is in no run
        (any more) changes nothing.
    """
    if (inner := inner_function(forward)) is not None:
        return with_inner(forward, inner, with_calls(inner, chains))
    proven = _proven(forward)
    if proven is None:
        return forward
    search = _Search(proven.tree, forward)
    for run in search.runs:
        _write(run, chains, search.self_name)
    ast.fix_missing_locations(proven.tree)
    code = _code_of(proven, forward.__code__)
    assert code is not None
    copy = FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__)
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy


# -- proof ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Proven:
    """The definition of a function, and the globals of it that its module imports, which Python compiles otherwise."""

    tree: ast.FunctionDef
    imported: tuple[str, ...]


def _proven(forward: FunctionType) -> _Proven | None:
    """The definition of a function, if it is plain and its text is what it was compiled from."""
    code = forward.__code__
    plain = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS | inspect.CO_NESTED | _FUTURES
    if code.co_freevars or code.co_flags & ~(plain | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    if not code.co_argcount or _SEES_VARIABLES.intersection(code.co_names):
        return None
    try:
        lines, first = inspect.getsourcelines(forward)
        (around,) = ast.parse(
            "if True:\n" + "".join(lines) if lines[0][:1].isspace() else "".join(lines)
        ).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    is_nested = isinstance(around, ast.If)  # as indented as it is: text in quotes stays what it is
    tree = around.body[0] if isinstance(around, ast.If) else around
    if not isinstance(tree, ast.FunctionDef):
        return None
    tree.decorator_list.clear()
    ast.increment_lineno(tree, first - 1 - is_nested)
    names = [name for name in code.co_names if name in forward.__globals__]
    modules = tuple(name for name in names if inspect.ismodule(forward.__globals__[name]))
    for imported in dict.fromkeys((modules, tuple(names), ())):
        compiled = _code_of(_Proven(tree, imported), code)
        if compiled is not None and _is_same(compiled, code):
            return _Proven(tree, imported)
    return None


def _code_of(proven: _Proven, code: CodeType) -> CodeType | None:
    """What a definition compiles to, with the names and the file of a code; its arguments' defaults are not in it."""
    imports: list[ast.stmt] = [
        ast.fix_missing_locations(ast.Import([ast.alias(name)])) for name in proven.imported
    ]
    module = ast.Module([*imports, proven.tree], [])
    flags = code.co_flags & _FUTURES
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    for constant in compiled.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == code.co_name:
            return constant.replace(co_qualname=code.co_qualname)
    return None


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they lie."""
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable")
    return (
        all(getattr(one, name) == getattr(other, name) for name in names)
        and not (one.co_flags ^ other.co_flags) & ~inspect.CO_NESTED
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_is_same_constant, one.co_consts, other.co_consts))
    )


def _is_same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _is_same(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


# -- search --------------------------------------------------------------------------------------


class _Search(ast.NodeVisitor):
    """Collects the runs of one definition."""

    def __init__(self, tree: ast.FunctionDef, forward: FunctionType) -> None:
        code = forward.__code__
        self.self_name = code.co_varnames[0]
        self.runs: list[_Run] = []
        self._forward = forward
        self._named: dict[ast.expr, str] = {}
        self._captured = frozenset(code.co_cellvars)
        self._reads = Counter(_read_names(tree))
        self._taken: set[ast.expr] = set()
        is_open = any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(tree))
        if self.self_name not in self._captured and not is_open and not _is_stored(tree, self.self_name):
            self._visit_body(tree.body, joins=True)

    def _visit_body(self, body: list[ast.stmt], *, joins: bool) -> None:
        """joins: calls of several statements may be one run."""
        run: _Run | None = None
        for statement in body:
            calls, first = self._calls_of(statement)
            if calls:
                assert isinstance(statement, ast.Assign | ast.Return)
                self._taken.update(calls)
                if run is not None and joins and self._continues(run, statement, first):
                    run.calls += calls
                else:
                    run = _Run(calls, first, self._named, body=body)
                    self.runs.append(run)
                run.statements.append((statement, len(run.calls)))
            else:
                run = None
            self._visit_inside(statement, joins=joins)
        self.runs[:] = [each for each in self.runs if len(each.calls) > 1]

    def _visit_inside(self, statement: ast.stmt, *, joins: bool) -> None:
        """The statements and expressions within a statement; not within definitions, whose `self` may be another."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        keeps = joins and isinstance(statement, ast.If | ast.For | ast.While)
        for _name, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._visit_body(value, joins=keeps)
            else:
                for node in value if isinstance(value, list) else [value]:
                    if isinstance(node, ast.AST):
                        self._visit_expressions(node)

    def _visit_expressions(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            if isinstance(node, ast.expr) and node not in self._taken and self._is_named(node):
                calls, first = self._unfolded(node)
                self._taken.update(calls)
                if len(calls) > 1:
                    self.runs.append(_Run(calls, first, self._named))

    def _calls_of(self, statement: ast.stmt) -> tuple[list[ast.Call], ast.expr]:
        """The calls that a statement consists of, `v = self.b(self.a(x))`, and x."""
        is_one = isinstance(statement, ast.Return) or (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id not in self._captured
        )
        if is_one and (value := statement.value) is not None:  # type: ignore[attr-defined]
            return self._unfolded(value)
        return [], ast.Constant(None)

    def _unfolded(self, node: ast.expr) -> tuple[list[ast.Call], ast.expr]:
        calls: list[ast.Call] = []
        while self._is_named(node):
            assert isinstance(node, ast.Call)
            calls.append(node)
            node = node.args[0]
        return calls[::-1], node

    def _is_named(self, node: ast.expr) -> bool:
        """Whether a node calls a child or an activation with one argument; its name is known from then on."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
            return False
        called = node.func
        is_own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
        if is_own and called.value.id == self.self_name:  # type: ignore[attr-defined]
            name = None if node.keywords else called.attr  # type: ignore[attr-defined]
        else:
            name = function_name(node, self._forward)
        if name is not None:
            self._named[node] = name
        return name is not None

    def _continues(self, run: _Run, statement: ast.Assign | ast.Return, first: ast.expr) -> bool:
        """Whether the statement's first call gets what the run's last one returned, and nothing else ever does."""
        last, _ = run.statements[-1]
        if not isinstance(last, ast.Assign) or not isinstance(first, ast.Name):
            return False
        variable = _target_of(last)
        is_replaced = isinstance(statement, ast.Return) or _target_of(statement) == variable
        return first.id == variable and (is_replaced or self._reads[variable] == 1)


def _target_of(statement: ast.Assign) -> str:
    (target,) = statement.targets
    assert isinstance(target, ast.Name)
    return target.id


def _read_names(tree: ast.AST) -> Iterator[str]:
    """The variables that are read or deleted, once for each place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _is_stored(tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


# -- writing -------------------------------------------------------------------------------------


def _parts(names: Names, chains: Mapping[Names, str]) -> Iterator[tuple[int, int, str]]:
    """(begin, end, global) of the chains in a run, from its begin, the longest first."""
    begin = 0
    longest_first = sorted(chains, key=len, reverse=True)
    while begin < len(names):
        for chain in longest_first:
            if names[begin : begin + len(chain)] == chain:
                yield begin, begin + len(chain), chains[chain]
                begin += len(chain)
                break
        else:
            begin += 1


def _write(run: _Run, chains: Mapping[Names, str], self_name: str) -> None:
    parts = list(_parts(run.names, chains))
    if not parts:
        return
    if not run.statements:
        _replace_calls(run, range(len(run.calls)), run.first, parts, self_name)
        return
    for begin, end in _merged(run, parts):
        first_call = 0 if begin == 0 else run.statements[begin - 1][1]
        statement, last_call = run.statements[end - 1]
        first = run.calls[first_call].args[0]
        value = _replace_calls(run, range(first_call, last_call), first, parts, self_name)
        for merged, _ in run.statements[begin : end - 1]:
            run.body.remove(merged)
        statement.value = value


def _merged(run: _Run, parts: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """Ranges of statements that become one, because a chain reaches over the ends of those before the last."""
    begin = 0
    for index, (_, calls) in enumerate(run.statements, start=1):
        if not any(first < calls < last for first, last, _ in parts):
            yield begin, index
            begin = index


def _replace_calls(
    run: _Run, places: range, first: ast.expr, parts: Sequence[tuple[int, int, str]], self_name: str
) -> ast.expr:
    """The nested calls at some places of a run, with those of a part as one call of its global; the outermost is
    changed in place."""
    begins = {begin: (end, name) for begin, end, name in parts}
    value, index = first, places.start
    while index < places.stop:
        if index in begins:
            end, name = begins[index]
            last = run.calls[end - 1]
            functions = [call.func for call in run.calls[index:end] if is_function(run.named[call])]
            last.func = ast.copy_location(ast.Name(name, ast.Load()), last)
            last.args = [ast.copy_location(ast.Name(self_name, ast.Load()), last), value, *functions]
            last.keywords = []
            value, index = last, end
        else:
            run.calls[index].args = [value]
            value, index = run.calls[index], index + 1
    return value
