"""Equality saturation of one block: all graphs that its equations reach, as classes of equal terms.

    space = saturate(graph)            extract.best(space, 8) are graphs out of it

Bounded by rounds, terms and seconds: what has been reached by then is sound, only not all. Nothing in it is random.
Needs egglog (the extra `search`), which is imported when it is first called.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels_hub.compiler.errors import CompilerError, MissingDependencyError
from kernels_hub.compiler.ir.graph import Graph, Value
from kernels_hub.compiler.search.candidate import SearchError
from kernels_hub.compiler.search.derived import derived
from kernels_hub.compiler.search.equations import EQUATIONS, Equation, facts_of_ops
from kernels_hub.compiler.search.terms import LANGUAGE, TYPES, WIDE, Terms, rule

Argument = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Term:
    """A constructor and what it is given: names of classes (as `Class`), numbers, texts, shapes."""

    op: str
    args: tuple[Argument | Class, ...]


@dataclass(frozen=True)
class Class:
    """Equal terms, by the name of their class."""

    name: str


@dataclass(frozen=True)
class Limits:
    """rounds of equations, terms in all, seconds. rounding: whether numbers may change by rounding."""

    rounds: int = 8
    terms: int = 4000
    seconds: float = 10.0
    rounding: bool = True

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.terms < 1 or self.seconds <= 0:
            raise SearchError(
                f"limits are 0 or more rounds, 1 or more terms and some seconds, not {self.rounds}, {self.terms}, "
                f"{self.seconds}"
            )


@dataclass(frozen=True)
class Space:
    """What was reached. classes: terms that are equal, in the order of the graph, then of their making.

    outputs: the class of each output. given: the class and the term of each value of the graph. original: a term that
    the graph itself has in a class. fired: how often each equation did. complete: whether nothing more is to be found.
    """

    terms: Terms
    classes: Mapping[Class, tuple[Term, ...]]
    outputs: Mapping[str, Class]
    given: Mapping[Value, tuple[Class, Term]]
    original: Mapping[Class, Term]
    fired: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    complete: bool = False

    @property
    def graph(self) -> Graph:
        """The graph that all this is about."""
        return self.terms.graph

    @property
    def size(self) -> int:
        """Terms in all."""
        return sum(map(len, self.classes.values()))


def saturate(graph: Graph, limits: Limits | None = None, equations: Sequence[Equation] = EQUATIONS) -> Space:
    """All that the equations reach from a graph. Raises MissingDependencyError where egglog is not installed."""
    limits = limits or Limits()
    engine = Egglog()
    terms = Terms(graph)
    dtypes = {str(value.dtype) for value in terms.names}
    used = [one for one in (*equations, *derived(dtypes)) if one.exact or limits.rounding]
    engine.run(LANGUAGE + TYPES + facts_of_ops())
    engine.run(" ".join(f'(wide "{one}")' for one in sorted(WIDE)))
    engine.run("\n".join(_rules(used)))
    engine.run(terms.program())
    engine.run("(run-schedule (saturate (run types)))")
    started = time.monotonic()
    nodes, data = engine.nodes()
    fired: dict[str, int] = {}
    rounds, complete = 0, False
    while rounds < limits.rounds and not complete:
        if time.monotonic() - started > limits.seconds or _count(nodes) > limits.terms:
            break
        found, changed = engine.round()
        for name, count in found.items():
            fired[name] = fired.get(name, 0) + count
        nodes, data = engine.nodes()
        complete = not changed
        rounds += 1
    return _space(terms, nodes, data, fired, rounds, complete)


def _rules(equations: Iterable[Equation]) -> list[str]:
    lines = []
    for equation in equations:
        for number, text in enumerate(equation.texts):
            name = f"{equation.name}:{number}"
            try:
                lines.append(rule(text, "equations", name))
            except ValueError as error:
                raise SearchError(f'equation {equation.name} is no "facts => actions": {text!r}') from error
    return lines


class Egglog:
    """An e-graph of egglog, driven by its own language."""

    def __init__(self) -> None:
        try:
            self._bindings: Any = importlib.import_module("egglog.bindings")
        except ImportError as error:
            raise MissingDependencyError(
                "searching for equal graphs needs egglog: pip install 'kernels-hub[search]'"
            ) from error
        self._graph = self._bindings.EGraph()

    def run(self, program: str) -> list[Any]:
        """Run commands. Raises SearchError for what egglog refuses."""
        try:
            return list(self._graph.run_program(*self._graph.parse_program(program)))
        except self._bindings.EggSmolError as error:
            raise SearchError(f"egglog refuses the equations: {error}") from error

    def round(self, rules: str = "equations", facts: str = "types") -> tuple[dict[str, int], bool]:
        """Every rule of a set once, wherever it matches; how often each did, and whether that changed anything.

        facts: the set that says what is known of new terms.
        """
        (first,) = self.run(f"(run-schedule (run {rules}))")
        self.run(f"(run-schedule (saturate (run {facts})))")
        report = first.report
        counts: dict[str, int] = {}
        for name, count in report.num_matches_per_rule.items():
            counts[name.split(":")[0]] = counts.get(name.split(":")[0], 0) + count
        return counts, bool(report.updated)

    def count(self) -> int:
        """Terms in all."""
        (printed,) = self.run("(print-size)")
        return sum(count for name, count in printed.sizes if _is_term(name))

    def nodes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All terms, and what is known of their classes, as egglog writes them."""
        found = json.loads(self._graph.serialize([]).to_json())
        return found["nodes"], found["class_data"]


def _is_term(name: str) -> bool:
    return name[:1].isupper()


def _count(nodes: Mapping[str, Any]) -> int:
    return sum(_is_term(node["op"]) for node in nodes.values())


def _space(
    terms: Terms,
    nodes: Mapping[str, Any],
    data: Mapping[str, Any],
    fired: Mapping[str, int],
    rounds: int,
    complete: bool,
) -> Space:
    reader = _Reader(terms, nodes)
    names = {row["let"]: Class(name) for name, row in data.items() if "let" in row}
    for row in nodes.values():  # a class may have several names, of which egglog keeps one
        if row["op"].startswith("$v"):
            names[row["op"]] = Class(row["eclass"])
    classes: dict[Class, list[Term]] = {}
    for row in nodes.values():
        if _is_term(row["op"]) and row["eclass"].startswith("T-"):
            classes.setdefault(Class(row["eclass"]), []).append(reader.term(row))
    of_value = reader.places(classes, names)
    given: dict[Value, tuple[Class, Term]] = {}
    original: dict[Class, Term] = {}
    for value, (op, args) in terms.made.items():
        term = Term(
            op, tuple(of_value[argument] if isinstance(argument, Value) else argument for argument in args)
        )
        given[value] = (of_value[value], term)
        original.setdefault(of_value[value], term)
    order = {one: index for index, one in enumerate(original)}
    ranked = sorted(classes, key=lambda kind: (order.get(kind, len(order)), _number(kind)))
    return Space(
        terms,
        {one: tuple(sorted(set(classes[one]), key=repr)) for one in ranked},
        {name: of_value[value] for name, value in terms.graph.outputs.items()},
        given,
        original,
        dict(sorted(fired.items())),
        rounds,
        complete,
    )


def _number(of: Class) -> int:
    return int(of.name.rpartition("-")[2])


class _Reader:
    """What egglog wrote, as terms."""

    def __init__(self, terms: Terms, nodes: Mapping[str, Any]) -> None:
        self._terms, self._nodes = terms, nodes

    def term(self, row: Mapping[str, Any]) -> Term:
        """A node."""
        args: list[Argument | Class] = []
        for name in row["children"]:
            child = self._nodes[name]
            if child["eclass"].startswith("Ts-"):
                args += [Class(self._nodes[one]["eclass"]) for one in child["children"]]
            elif child["eclass"].startswith("Dims-"):
                args.append(tuple(int(self._nodes[one]["op"]) for one in child["children"]))
            elif child["eclass"].startswith("T-"):
                args.append(Class(child["eclass"]))
            else:
                args.append(json.loads(child["op"]))
        return Term(row["op"], tuple(args))

    def places(
        self, classes: Mapping[Class, Sequence[Term]], names: Mapping[str, Class]
    ) -> dict[Value, Class]:
        """The class of each value of the graph: by its name, or by its term."""
        by_term = {term: one for one, members in classes.items() for term in members}
        knowns: dict[Value, Class] = {}
        for value, (op, args) in self._terms.made.items():
            term = Term(
                op, tuple(knowns[argument] if isinstance(argument, Value) else argument for argument in args)
            )
            known = by_term.get(term) or names.get(self._terms.names[value])
            if known is None:
                raise CompilerError(f"egglog lost {value} of graph {self._terms.graph.name}")
            knowns[value] = known
        return knowns
