"""Programs of `torch.export.save` from disk (.pt2), read as data: nothing in a file can run.

`torch.export.load` unpickles, evaluates sizes as Python, and makes Python source of the names in a file. Here the
records are read by `torch_archive`, without pickles, and PyTorch builds the program of a document in which every text
was checked first: names are identifiers, sizes arithmetic, ops those that the importer or PyTorch's decompositions
know. Guards, examples of inputs and custom metadata are left out.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers.torch_archive import TorchArchive, if_trusted
from kernels_hub.compiler.importers.torch_export import import_exported
from kernels_hub.compiler.importers.torch_program import TorchProgram

if TYPE_CHECKING:
    import torch


def import_program_file(path: Path) -> TorchProgram:
    """The graph of a program on disk, named as the file. Raises ImportFailure, FileNotFoundError."""
    return import_exported(read_program(path), name=path.stem)


def read_program(path: Path) -> torch.export.ExportedProgram:
    """A program that torch.export.save wrote, with its weights in the mapped file and everything on the CPU.

    Raises ImportFailure for what is damaged, is of another release's format, or could run code; FileNotFoundError.
    """
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass

    archive = TorchArchive(path)
    models = archive.names("models/")
    if models != ["model.json"]:
        raise ImportFailure(
            f"{path} holds {len(models)} programs ({', '.join(models)[:200]}); expected the one that torch.export.save "
            "writes, model.json"
        )
    document = archive.document("models/model.json")
    _Check(path).document(document)
    weights = archive.tensors("data/weights/", "data/weights/model_weights_config.json")
    constants = archive.tensors("data/constants/", "data/constants/model_constants_config.json")
    try:
        stored = _dict_to_dataclass(schema.ExportedProgram, document)
        return ExportedProgramDeserializer().deserialize(stored, weights, constants)
    except Exception as error:
        raise ImportFailure(f"{path} cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """What PyTorch says is wrong; of a node, what is at the end of the traceback that it prints."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if "Traceback" in str(error) else lines[0] if lines else ""
    return f"{type(error).__name__}: {text[:400]}"


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[\w.+\-]*", re.ASCII)
_PATH = re.compile(r"[\w.\-/:+ ]*", re.ASCII)
_LONGEST = 1000
_PATHS = frozenset({"parameter_name", "buffer_name", "tensor_constant_name", "fqn"})
_SPECS = frozenset({"in_spec", "out_spec"})
_FREE = frozenset({"as_string"})
"""Texts that are arguments, and written as such wherever PyTorch writes them."""
_OBJECTS = frozenset({"as_custom_obj", "custom_obj"})


class _Check:
    """Refuses texts by which a document could run code, and leaves out what no graph needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unknown: dict[str, None] = {}

    def document(self, document: dict[str, object]) -> None:
        """Check all of it, and change it."""
        document["guards_code"] = []
        module = document.get("graph_module")
        if not isinstance(module, dict):
            raise ImportFailure(f"{self.path} is damaged: it describes no graph")
        module["metadata"] = {}
        waiting: list[tuple[str, object]] = [("", document)]
        while waiting:
            waiting += self._inside(*waiting.pop())
        if self.unknown:
            names = ", ".join(self.unknown)
            raise ImportFailure(
                f"{self.path} has ops that are not supported in a file: {names}; {if_trusted(self.path)}"
            )

    def _inside(self, key: str, value: object) -> Iterator[tuple[str, object]]:
        """What is inside of a value, by the key that it stands at."""
        if isinstance(value, list):
            yield from ((key, one) for one in value)
        elif isinstance(value, dict):
            if "target" in value and "inputs" in value:
                value["metadata"] = self._metadata(value.get("metadata"))
            for name, one in value.items():
                self._text(name, _PLAIN, "a key")
                if name in _OBJECTS:
                    raise self._refused(f"{name} is an object of a class of its own")
                if name in ("device", "as_device") and isinstance(one, dict):
                    one.update(type="cpu", index=None)
                if name != "metadata":
                    yield name, one
        elif isinstance(value, str):
            self._string(key, value)

    def _string(self, key: str, text: str) -> None:
        if key == "expr_str":
            self._size(text)
        elif key in ("target", "as_operator"):
            self._op(text)
        elif key in _SPECS:
            self._tree(key, text)
        elif key in _PATHS:
            self._text(text, _PATH, key)
        elif key in ("name", "as_name", "forward_arg_names"):
            if text:  # of arguments that are given by position
                self._text(text, _NAME, key)
        elif key not in _FREE and key != "as_strings":
            self._text(text, _PLAIN, key)

    def _text(self, text: str, allowed: re.Pattern[str], what: str) -> None:
        if len(text) > _LONGEST or allowed.fullmatch(text) is None:
            raise self._refused(f"{what} is {text[:80]!r}")

    def _refused(self, why: str) -> ImportFailure:
        return ImportFailure(
            f"{self.path}: {why}, which is not read as it could run code; {if_trusted(self.path)}"
        )

    def _metadata(self, metadata: object) -> dict[str, str]:
        """Where an op comes from: its modules, and the line of source."""
        kept = {}
        for key in ("nn_module_stack", "stack_trace"):
            text = metadata.get(key) if isinstance(metadata, dict) else None
            if isinstance(text, str) and all(one.isprintable() for one in text.split("\n")):
                kept[key] = text
        if any(item.count(",") < 2 for item in kept.get("nn_module_stack", ",,").split(";")):
            del kept["nn_module_stack"]
        return kept

    def _size(self, text: str) -> None:
        """Sizes are evaluated: nothing but arithmetic of symbols, in small numbers of powers."""
        try:
            if len(text) > _LONGEST:
                raise ValueError("it is too long")
            _check_arithmetic(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._refused(f"a size is {text[:80]!r}") from error

    def _op(self, text: str) -> None:
        if not _is_known(text):
            self.unknown.setdefault(text[:80])

    def _tree(self, key: str, text: str) -> None:
        """How arguments or results are nested, as JSON in JSON."""
        try:
            _, tree = json.loads(text)
            nodes = [tree]
            while nodes:
                node = nodes.pop()
                nodes += node["children_spec"]
                self._node(node["type"], node["context"])
            if key == "in_spec" and tree["type"] == "builtins.tuple" and len(tree["children_spec"]) == 2:
                for name in json.loads(tree["children_spec"][1]["context"] or "[]") or ():
                    self._text(name, _NAME, "a keyword argument")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ImportFailure(
                f"{self.path} is damaged: {key} is no tree: {type(error).__name__}"
            ) from error

    def _node(self, kind: str | None, context: str | None) -> None:
        from torch.utils import _pytree as pytree

        if kind is None:
            return
        self._text(kind, _PLAIN, "a type of arguments or results")
        known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind)
        if known is None:
            raise ImportFailure(
                f"{self.path} takes or returns a {kind}, which no imported library has made known to PyTorch: import "
                "the library that defines it, and read the file again"
            )
        reads = pytree.SUPPORTED_SERIALIZED_TYPES[known].from_dumpable_context
        if reads is not None and kind != "collections.namedtuple":
            raise self._refused(f"arguments or results are a {kind}")
        for one in _texts(json.loads(context or "null")):
            self._text(one, _PATH, f"a key of a {kind}")
            if one == "__enum__":
                raise self._refused(f"a key of a {kind} is a member of an enumeration")


def _texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]


_FUNCTIONS = frozenset({
    "Abs", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "FloatPow", "FloatTrueDiv", "Float", "FloorDiv",
    "FloorToInt", "Ge", "Gt", "Identity", "IntTrueDiv", "Integer", "LShift", "Le", "Lt", "Max", "Min", "Mod",
    "ModularIndexing", "Mul", "Add", "Ne", "Not", "Or", "Pow", "PowByNatural", "PythonMod", "RShift", "Rational",
    "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where", "ceiling", "floor",
})  # fmt: skip
_OPERATIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load,
)  # fmt: skip
_MOST_POWER = 8


def _check_arithmetic(tree: ast.expr) -> None:
    """Raise ValueError for an expression that is more than arithmetic of symbols."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            function = node.func.id if isinstance(node.func, ast.Name) else ""
            if function == "Symbol":
                _check_symbol(node)
                continue
            if function not in _FUNCTIONS:
                raise ValueError(f"a call of {function or 'something'}")
            if "Pow" in function or "Shift" in function:
                _check_power(node.args[-1] if node.args else tree)
            waiting += [*node.args, *(one.value for one in node.keywords)]
            continue
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, (int, float)) or abs(node.value) > 1 << 64:
                raise ValueError(f"the constant {node.value!r}")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift, ast.RShift)):
            _check_power(node.right)
        elif not isinstance(node, (ast.Name, *_OPERATIONS)):
            raise ValueError(f"a {type(node).__name__}")  # noqa: TRY004 -- it is the text that is wrong
        waiting += ast.iter_child_nodes(node)


def _check_symbol(call: ast.Call) -> None:
    """Symbol('s0', positive=True, integer=True)."""
    names = [one.value for one in call.args if isinstance(one, ast.Constant)]
    flags = [one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)]
    if len(names) != len(call.args) or len(flags) != len(call.keywords) or len(names) != 1:
        raise ValueError("a symbol of something computed")
    if not isinstance(names[0], str) or not _NAME.fullmatch(names[0]):
        raise ValueError("a symbol without a name")
    if not all(isinstance(flag, bool) for flag in flags):
        raise ValueError("a symbol with flags of another kind")


def _check_power(power: ast.AST) -> None:
    value = power.operand if isinstance(power, ast.UnaryOp) else power
    if isinstance(value, ast.Call) and len(value.args) == 1:  # Integer(2)
        value = value.args[0]
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int) or value.value > _MOST_POWER:
        raise ValueError("a large power, or one that is computed")


_OVERLOAD = re.compile(r"torch\.ops\.aten\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_HIGHER = re.compile(r"torch\.ops\.higher_order\.([A-Za-z_]\w*)", re.ASCII)
_SCALAR = re.compile(r"(_operator|math|torch)\.([A-Za-z_]\w*)", re.ASCII)


def _is_known(target: str) -> bool:
    """Whether an op is computed from its tensors and sizes alone, as far as the importer gets with it."""
    import math
    import operator

    import torch
    from torch._export.serde.serialize import _SYM_OPS

    from kernels_hub.compiler.importers.aten_ops import handler_of
    from kernels_hub.compiler.importers.torch_direct import IN_PLACE, name_of
    from kernels_hub.compiler.importers.torch_regions import CONTROL_FLOW

    if found := _HIGHER.fullmatch(target):
        return found[1] in {*CONTROL_FLOW, *_REGIONS}
    if found := _SCALAR.fullmatch(target):
        module = {"_operator": operator, "math": math, "torch": torch}[found[1]]
        function = getattr(module, found[2], None)
        return function is operator.getitem or (callable(function) and function in _SYM_OPS)
    if not (found := _OVERLOAD.fullmatch(target)):
        return False
    op = getattr(getattr(torch.ops.aten, found[1], None), found[2], None)
    if not isinstance(op, torch._ops.OpOverload):
        return False
    name = name_of(op)
    return (
        handler_of(name) is not None
        or name in IN_PLACE
        or op in torch._decomp.core_aten_decompositions()
        or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
        or found[1] in _CONDITIONS
    )


_REGIONS = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})
_CONDITIONS = frozenset({
    "_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range", "sym_size", "sym_numel",
    "sym_stride", "sym_storage_offset", "sym_constrain_range_for_size", "item", "_local_scalar_dense",
    "lift_fresh_copy",
})  # fmt: skip
"""Ops that PyTorch puts around sizes."""
