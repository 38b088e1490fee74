"""The `[[tag]]` and `[contract.*]` tables of a mapping file: which classes have which layer name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_hub.kernelization.canonical import NoCanonicalForm
from kernels_hub.kernelization.condition import Test
from kernels_hub.kernelization.contract import USUAL_NAMES, Contract, class_fulfils
from kernels_hub.kernelization.loaded_object import OBJECT_NAME
from kernels_hub.kernelization.mapping_entries import read_conditions
from kernels_hub.kernelization.mapping_table import Table, unknown
from kernels_hub.kernelization.tag_rule import TagEntry


def read_contracts(
    document: Table, included: Mapping[str, Contract], *, trusted: bool
) -> dict[str, Contract]:
    """The `[contract.<name>]` tables of a file, which may refer to each other and to included ones.

    trusted: their sources were checked before (the shipped files, by the tests) and are parsed when
        first needed, which saves most of the time that loading takes.

    Raises MappingError.
    """
    return _ContractReader(dict(document.named_tables("contract")), included, trusted).read_all()


class _ContractReader:
    def __init__(self, tables: Mapping[str, Table], included: Mapping[str, Contract], trusted: bool) -> None:
        self._tables = tables
        self._included = included
        self._trusted = trusted
        self._done: dict[str, Contract] = {}
        self._open: list[str] = []

    def read_all(self) -> dict[str, Contract]:
        for name in self._tables:
            self._read(name)
        return self._done

    def _read(self, name: str) -> Contract:
        if name in self._done:
            return self._done[name]
        table = self._tables[name]
        if name in self._open:
            chain = " -> ".join((*self._open[self._open.index(name) :], name))
            raise table.source.error(table.keys, f"contracts may not refer to themselves: {chain}")
        self._open.append(name)
        contract = Contract(
            name,
            source=table.required("source", str, "the source of one function"),
            names=self._names(table),
            methods={
                method: self._contracts(
                    table, ("methods", method), [value] if isinstance(value, str) else value
                )
                for method, value in (table.get("methods", dict) or {}).items()
            },
            properties=frozenset(table.strings("properties", "a list of attributes of self")),
            decorators=self._decorators(table),
            variants=_variants(table),
        )
        table.done()
        if not self._trusted:
            _check(table, contract)
        self._open.pop()
        self._done[name] = contract
        return contract

    def _names(self, table: Table) -> dict[str, str | tuple[Contract, ...]]:
        names: dict[str, str | tuple[Contract, ...]] = {}
        for name, value in (table.get("names", dict) or {}).items():
            if isinstance(value, str) and OBJECT_NAME.fullmatch(value):
                names[name] = value
            elif isinstance(value, dict) and value.keys() == {"contract"}:
                contract = value["contract"]
                names[name] = self._contracts(
                    table, ("names", name), [contract] if isinstance(contract, str) else contract
                )
            else:
                expected = 'an object such as "torch.nn.functional", or { contract = "name" }'
                raise table.error(("names", name), f"expected {expected}, got {value!r}")
        return names

    def _decorators(self, table: Table) -> tuple[str, ...]:
        names = table.strings("decorators", "a list of decorators, outermost first")
        for index, name in enumerate(names):
            if not OBJECT_NAME.fullmatch(name):
                raise table.error(
                    ("decorators", index), f'expected a function such as "package.module:name", got {name!r}'
                )
        return tuple(names)

    def _contracts(self, table: Table, keys: tuple[str, ...], given: object) -> tuple[Contract, ...]:
        if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
            raise table.error(keys, f"expected the name of a contract, or a list of them, got {given!r}")
        return tuple(
            self._read(name)
            if name in self._tables
            else _find(table, keys, name, self._included, self._tables)
            for name in given
        )


def _variants(table: Table) -> tuple[dict[str, str], ...]:
    expected = 'a list of tables such as { "written here" = "written in another release" }'
    given = table.get("variants", list) or []
    for index, variant in enumerate(given):
        if (
            not isinstance(variant, dict)
            or not variant
            or not all(isinstance(v, str) for v in variant.values())
        ):
            raise table.error(("variants", index), f"expected {expected}, got {variant!r}")
    return tuple(given)


def _check(table: Table, contract: Contract) -> None:
    for index, variant in enumerate(contract.variants):
        for text in variant:
            if text not in contract.source:
                raise table.error(("variants", index), f"the source does not hold {text!r}")
    _check_source(table, "source", contract)
    for index, spelling in enumerate(contract.spellings[1:]):
        _check_source(table, ("variants", index), spelling)
    for kind, given, used in (
        ("names", contract.names, contract.form.free),
        ("methods", contract.methods, contract.form.self_attributes),
        ("properties", contract.properties, contract.form.self_attributes),
    ):
        for name in given:
            if name not in used:
                raise table.error((kind, name), f"the source does not use {name!r}")


def _check_source(table: Table, place: str | tuple[str | int, ...], contract: Contract) -> None:
    try:
        names = contract.unexplained_names()
    except SyntaxError as error:
        where = f" in line {error.lineno} of it" if error.lineno else ""
        raise table.error(
            place, f"expected the source of one function, got a syntax error{where}: {error.msg}"
        ) from error
    except NoCanonicalForm as error:
        raise table.error(
            place, f"expected the source of one function that can be compared: {error}"
        ) from error
    if names:
        raise table.error(
            "names",
            f'the source uses {names[0]!r}: say what it is, e.g. names = {{ {names[0]} = "package.object" }} '
            f"(known without saying: builtins, {', '.join(USUAL_NAMES)})",
        )


def read_tags(
    document: Table,
    contracts: Mapping[str, Contract],
    alternatives: Mapping[str, Any],
    fulfilled: Mapping[str, Test],
) -> tuple[TagEntry, ...]:
    """The `[[tag]]` tables of a file. Raises MappingError. fulfilled: of `contracts`, see `classes_that_fulfil`."""
    entries = []
    for table in document.tables("tag"):
        layer_name = table.required("layer", str, "a layer name")
        classes = _patterns(table, "classes")
        functions = _patterns(table, "functions")
        levels = table.get("levels", int)
        if not classes and not functions and levels is None:
            raise table.source.error(
                table.keys, "expected 'classes', 'functions' or 'levels', got none of them"
            )
        if levels is not None and levels < 1:
            raise table.error("levels", f"expected 1 (the model itself) or more, got {levels}")
        where = read_conditions(table, alternatives, fulfilled)
        if where is not None and functions:
            raise table.error("where", "conditions are asked of module instances; functions have none")
        references = tuple(
            _find(table, ("forward", index), name, contracts, {})
            for index, name in enumerate(table.strings("forward", "a list of contract names"))
        )
        if levels is not None and (classes or functions or references):
            raise table.error(
                "levels", "it tags modules by their place: leave classes, functions and forward out"
            )
        written = bool(table.get("written", bool))
        if written and (functions or levels is not None):
            raise table.error("written", "it is asked of classes")
        positional = bool(table.get("positional", bool))
        if positional and not references:
            raise table.error("positional", "only a contract proves that arguments correspond: add 'forward'")
        table.done()
        entries.append(
            TagEntry(layer_name, classes, functions, references, positional, where, levels or 0, written)
        )
    return tuple(entries)


def classes_that_fulfil(contracts: Mapping[str, Contract]) -> dict[str, Test]:
    """By the name of each contract, whether the class of a module fulfils it."""
    return {name: _has_class_of(contract) for name, contract in contracts.items()}


def _has_class_of(contract: Contract) -> Test:
    """Whether the class of a module fulfils a contract. Looked at once a class, as long as its forward stays."""
    known: dict[type, tuple[object, bool]] = {}

    def test(value: object) -> bool:
        cls = type(value)
        forward, found = known.get(cls, (None, False))
        if forward is None or forward is not getattr(cls, "forward", None):
            found = class_fulfils(cls, (contract,))
            known[cls] = getattr(cls, "forward", None), found
        return found

    return test


def _patterns(table: Table, key: str) -> tuple[str, ...]:
    texts = table.strings(key, 'a list of patterns such as "package.module:*RMSNorm"')
    for index, text in enumerate(texts):
        if text.count(":") != 1 or not all(text.split(":")):
            raise table.error(
                (key, index), f"expected 'module:name', each plain or with wildcards, got {text!r}"
            )
    return tuple(texts)


def _find(
    table: Table,
    keys: tuple[str | int, ...],
    name: str,
    contracts: Mapping[str, Contract],
    more: Mapping[str, object],
) -> Contract:
    if name not in contracts:
        raise table.error(keys, unknown(name, [*contracts, *more], "contract"))
    return contracts[name]
