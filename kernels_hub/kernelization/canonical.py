"""The canonical form of a function's source: what is left when names and decoration do not count.

    def forward(self, x):                              (%0, %1)
        '''Docstring.'''                               %2 = %1.chunk(2, dim=-1)
        gate: torch.Tensor = x.chunk(2, dim=-1)   ->   return torch.tanh(%2)
        return torch.tanh(gate)  # comment

Dropped: the function's name, docstring, comments, annotations, decorators. Numbered in order of first appearance:
parameters and local variables (keyword-only parameters keep their names, callers use them). Kept: attributes, free
names, constants, keywords of calls, defaults, the order of everything. Two functions are equal up to the names and the
number of their variables if they are the same statements once variables that a statement alone reads have given way
(`substitution.py`), as long as their free names mean the same, which is for the caller to check (`contract.py`).

Functions that define others, import, or declare `global` have no canonical form: nothing worth a
contract does so, and each is a way for a name to mean something else.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernels_hub.kernelization.substitution import substituted

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DECLARATIONS = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
_WITHOUT_FORM = (*_DEFINITIONS, *_DECLARATIONS, ast.Try, ast.TryStar, ast.Match)
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class NoCanonicalForm(ValueError):
    """A source that is not one function, or one that uses what contracts do not compare."""


@dataclass(frozen=True)
class CanonicalForm:
    """A function's form: its signature, then one text a statement of its body."""

    lines: tuple[str, ...]
    readable: tuple[str, ...]
    """The same lines with the names of the source, for messages."""
    fewest: tuple[str, ...]
    """The statements with as few variables as can be."""
    free: frozenset[str]
    """Names that are neither parameters nor local variables."""
    self_attributes: frozenset[str]
    """Attributes that are read from or written to the first parameter."""
    parameters: str = ""
    """The signature without the defaults of positional parameters, which are in `defaults`."""
    defaults: tuple[str, ...] = ()
    """Those of the last positional parameters."""

    def serves(self, other: CanonicalForm) -> bool:
        """Whether this does what the other does for every call that the other takes."""
        return self.takes_as(other) and self.fewest == other.fewest

    def takes_as(self, other: CanonicalForm) -> bool:
        """Whether the signature is the other's, or has defaults where the other requires an argument."""
        kept = len(self.defaults) - len(other.defaults)
        return self.lines[0] == other.lines[0] or (
            self.parameters == other.parameters and kept >= 0 and self.defaults[kept:] == other.defaults
        )

    def __str__(self) -> str:
        return "\n".join(self.lines)


def canonical_form(source: str) -> CanonicalForm:
    """The canonical form of the source of one function.

    Raises SyntaxError (from Python's parser), and NoCanonicalForm when the source is not one
    function definition, or the function uses a statement that contracts do not compare.

    >>> canonical_form("def forward(self, x): return x * self.scale").lines
    ('(%0, %1)', 'return %1 * %0.scale')
    """
    return canonical_form_of_node(parse_function(source))


def parse_function(source: str) -> FunctionNode:
    """The definition in a source that holds one function, indented or not."""
    body = ast.parse(textwrap.dedent(source)).body
    if len(body) != 1 or not isinstance(body[0], FunctionNode):
        raise NoCanonicalForm("its source is not one function definition")
    return body[0]


def canonical_form_of_node(function: FunctionNode) -> CanonicalForm:
    """As `canonical_form`, of a parsed definition, which is left as it is."""
    statements = function.body
    if ast.get_docstring(function, clean=False) is not None:
        statements = statements[1:]
    for node in (node for statement in function.body for node in ast.walk(statement)):
        if isinstance(node, _WITHOUT_FORM):
            raise NoCanonicalForm(f"it contains a statement that contracts do not compare: {_short(node)}")
    form = _form_of(function, statements)
    fewer = substituted(statements)
    return form if len(fewer) == len(statements) else replace(form, fewest=_form_of(function, fewer).fewest)


def _form_of(function: FunctionNode, statements: Sequence[ast.stmt]) -> CanonicalForm:
    renaming = _Renaming()
    prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    arguments = renaming.open_function(function.args, statements)
    body = [statement for node in statements if (statement := renaming.visit(node)) is not None]
    bare = ast.arguments(**{**dict(ast.iter_fields(arguments)), "defaults": []})
    lines = tuple(map(ast.unparse, body))
    return CanonicalForm(
        lines=(f"{prefix}({ast.unparse(arguments)})", *lines),
        readable=(
            f"({ast.unparse(_without_annotations(function.args))})",
            *(ast.unparse(node) for node in statements if not _is_declaration(node)),
        ),
        fewest=lines,
        free=frozenset(renaming.free),
        self_attributes=frozenset(renaming.self_attributes),
        parameters=f"{prefix}({ast.unparse(bare)})",
        defaults=tuple(map(ast.unparse, arguments.defaults)),
    )


def first_difference(reference: CanonicalForm, found: CanonicalForm) -> tuple[int, str]:
    """Where two forms part: the number of equal lines before, and a sentence for a person."""
    for index, (wanted, got) in enumerate(zip(reference.lines, found.lines, strict=False)):
        if wanted != got and (index > 0 or not reference.takes_as(found)):
            what = "its signature" if index == 0 else f"statement {index}"
            return (
                index,
                f"{what} is `{_cut(found.readable[index])}`, not `{_cut(reference.readable[index])}`",
            )
    equal = min(len(reference.lines), len(found.lines))
    if len(found.lines) > equal:
        return equal, f"it goes on with `{_cut(found.readable[equal])}`"
    return equal, f"it lacks `{_cut(reference.readable[equal])}`"


class _Renaming(ast.NodeTransformer):
    """Numbers the variables of a copy of the nodes it visits; scopes as Python has them."""

    def __init__(self) -> None:
        self.free: set[str] = set()
        self.self_attributes: set[str] = set()
        self._scopes: list[dict[str, str | None]] = []
        self._count = 0

    def open_function(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> ast.arguments:
        defaults = [self.visit(default) for default in arguments.defaults]  # outside the new scope
        keyword_defaults = [default and self.visit(default) for default in arguments.kw_defaults]
        self._scopes.append(dict.fromkeys(_names_bound(body)))
        positional = [self._parameter(argument) for argument in arguments.posonlyargs]
        ordinary = [self._parameter(argument) for argument in arguments.args]
        rest = arguments.vararg and self._parameter(arguments.vararg)
        for argument in arguments.kwonlyargs:
            self._scopes[-1][argument.arg] = f"%{argument.arg}"
        keywords = arguments.kwarg and self._parameter(arguments.kwarg)
        return ast.arguments(
            posonlyargs=positional,
            args=ordinary,
            vararg=rest,
            kwonlyargs=[ast.arg(f"%{argument.arg}") for argument in arguments.kwonlyargs],
            kw_defaults=keyword_defaults,
            kwarg=keywords,
            defaults=defaults,
        )

    def visit_Name(self, node: ast.Name) -> ast.Name:
        for scope in reversed(self._scopes):
            if node.id in scope:
                number = scope[node.id] or self._number()
                scope[node.id] = number
                return ast.Name(number, node.ctx)
        self.free.add(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        renamed = self.generic_visit(node)
        if (
            isinstance(renamed, ast.Attribute)
            and isinstance(renamed.value, ast.Name)
            and renamed.value.id == "%0"
        ):
            self.self_attributes.add(node.attr)
        return renamed

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign | None:
        if node.value is None:
            return None
        assign = ast.Assign([self.visit(node.target)], self.visit(node.value))
        return ast.copy_location(assign, node)  # unparse looks at the line number of assignments

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        arguments = self.open_function(node.args, [node.body])
        body = self.visit(node.body)
        self._scopes.pop()
        return ast.Lambda(arguments, body)

    def _comprehension(self, node: _Comprehension) -> ast.AST:
        first = self.visit(node.generators[0].iter)  # evaluated in the enclosing scope
        targets = [name for generator in node.generators for name in _names_stored(generator.target)]
        self._scopes.append(dict.fromkeys(targets))
        generators = [
            ast.comprehension(
                target=self.visit(generator.target),
                iter=self.visit(generator.iter) if index else first,
                ifs=[self.visit(condition) for condition in generator.ifs],
                is_async=generator.is_async,
            )
            for index, generator in enumerate(node.generators)
        ]
        if isinstance(node, ast.DictComp):
            renamed: ast.AST = ast.DictComp(self.visit(node.key), self.visit(node.value), generators)
        else:
            renamed = type(node)(self.visit(node.elt), generators)
        self._scopes.pop()
        return renamed

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def generic_visit(self, node: ast.AST) -> ast.AST:
        # A copy, so that the caller's tree keeps its names for messages.
        copy = type(node)(**dict(ast.iter_fields(node)))
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                visited = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
                setattr(copy, name, [item for item in visited if item is not None])
            elif isinstance(value, ast.AST):
                setattr(copy, name, self.visit(value))
        return ast.copy_location(copy, node)

    def _parameter(self, argument: ast.arg) -> ast.arg:
        number = self._scopes[-1][argument.arg] = self._number()
        return ast.arg(number)

    def _number(self) -> str:
        self._count += 1
        return f"%{self._count - 1}"


def _names_bound(body: Sequence[ast.AST]) -> Iterator[str]:
    """Names that statements, or a lambda's expression, bind in the scope they stand in."""
    stack: list[tuple[ast.AST, bool]] = [(node, False) for node in body]
    while stack:
        node, inner = stack.pop()
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.NamedExpr):  # binds outside the comprehension that it stands in
            yield node.target.id
        elif isinstance(node, ast.Name) and not inner and not isinstance(node.ctx, ast.Load):
            yield node.id
        inner = inner or isinstance(node, _Comprehension)
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))


def _names_stored(target: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    def bare(argument: ast.arg) -> ast.arg:
        return ast.arg(argument.arg)

    return ast.arguments(
        posonlyargs=[bare(argument) for argument in arguments.posonlyargs],
        args=[bare(argument) for argument in arguments.args],
        vararg=arguments.vararg and bare(arguments.vararg),
        kwonlyargs=[bare(argument) for argument in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg and bare(arguments.kwarg),
        defaults=arguments.defaults,
    )


def _is_declaration(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is None


def _short(node: ast.AST) -> str:
    return f"`{_cut(ast.unparse(node))}`"


def _cut(text: str, limit: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
