"""Dispatches a node of an ONNX graph: to its importer, or to the function that it stands for.

A node that cannot be imported is noted and what it gives is marked broken, so the import goes on, and everything
that is wrong with a model is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels_hub.compiler.errors import CompilerError, ImportFailure, Unsupported
from kernels_hub.compiler.importers.onnx_file import canonical, label, opsets_of
from kernels_hub.compiler.importers.onnx_functions import function_body, has_body, missing_attributes
from kernels_hub.compiler.importers.onnx_messages import AnyMessage, AttributeProto, FunctionProto, NodeProto
from kernels_hub.compiler.importers.onnx_node import OnnxNode, UnknownValueError, importer_of
from kernels_hub.compiler.importers.onnx_scope import BrokenError, InsideError, Scope
from kernels_hub.compiler.importers.onnx_sequences import Named

_DEEPEST = 60
"""Functions in functions; deeper is a function that contains itself."""

_MALFORMED = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError, StopIteration,
)  # fmt: skip
"""What attributes of wrong kinds and lengths lead to in importers, which trust those that the checker passes."""


def import_node(scope: Scope, proto: NodeProto) -> list[Named | None]:
    """What a node's outputs are, one each; None where it could not be imported, which is noted in the session."""
    before = len(scope.session.unsupported)
    try:
        with scope.graph.origin("/".join((*scope.path, label(proto)))):
            return list(_import(scope, proto))
    except BrokenError:
        _note_unknown_op(scope, proto)
    except InsideError:
        if (
            len(scope.session.unsupported) == before
        ):  # one way was tried after another, and what stopped them undone
            _note(scope, proto, "; ".join(map(str, scope.session.undone)))
    except CompilerError as error:
        waits = isinstance(error, UnknownValueError) and bool(error.inputs)
        if isinstance(error, UnknownValueError):
            scope.session.wanted.update(dict.fromkeys(error.inputs))
        _note(scope, proto, str(error), waits=waits)
    except _MALFORMED as error:
        scope.session.cause = scope.session.cause or error
        _note(scope, proto, _malformed(scope, proto, error))
    return [None] * len(proto.output)


def _malformed(scope: Scope, proto: NodeProto, error: Exception) -> str:
    domain = canonical(proto.domain)
    missing = missing_attributes(proto, domain, scope.opsets.get(domain, 0))
    if missing:
        return f"the attribute{'s' if len(missing) > 1 else ''} {', '.join(missing)} must be given"
    return f"its attributes or operands are not what the op takes ({type(error).__name__}: {_brief(error)})"


def _import(scope: Scope, proto: NodeProto) -> Sequence[Named | None]:
    domain = canonical(proto.domain)
    function = scope.session.functions.get((proto.domain, proto.op_type, getattr(proto, "overload", "")))
    if function is not None:
        return _function(scope, OnnxNode(proto, scope, 0), function)
    opset = scope.opsets.get(domain)
    if opset is None:
        raise ImportFailure(f"the domain {domain or 'ai.onnx'!r} is not among those that the model imports")
    importer = importer_of(domain, proto.op_type, opset)
    node = OnnxNode(proto, scope, opset)
    if importer is None:
        body = function_body(node)
        if body is None:
            raise ImportFailure(_why_not(proto.op_type))
        return _function(scope, node, body)
    answer = importer(node)
    results: list[Named | None] = [answer] if isinstance(answer, Named) else list(answer)
    results += [None] * (len(proto.output) - len(results))
    for index, name in enumerate(proto.output):
        if name and results[index] is None:
            raise ImportFailure(f"output {index} ({name!r}) is not computed")
    return results[: len(proto.output)]


def _function(scope: Scope, node: OnnxNode, function: FunctionProto) -> list[Named | None]:
    if len(scope.path) > _DEEPEST:
        raise ImportFailure(f"functions are nested deeper than {_DEEPEST}: one contains itself")
    inner = Scope(
        scope.session, scope.graph, opsets_of(function.opset_import, f"function {function.name}"),
        attributes=_attributes_of(node, function), path=(*scope.path, label(node.proto)),
    )  # fmt: skip
    if len(node.operands) > len(function.input):
        raise ImportFailure(f"takes {len(function.input)} inputs, got {len(node.operands)}")
    if len(node.proto.output) > len(function.output):
        raise ImportFailure(f"gives {len(function.output)} outputs, {len(node.proto.output)} are named")
    for name, value in zip(function.input, node.operands, strict=False):
        if value is not None:
            inner.names[name] = value
    before = len(scope.session.unsupported)
    body = _without_missing(function, inner.names)
    inner.run(body, f"function {function.name}")
    if len(scope.session.unsupported) > before:
        raise InsideError
    return [
        inner.named(name) if wanted and inner.has(name) else None
        for name, wanted in zip(function.output, node.proto.output, strict=False)
    ]


def _note(scope: Scope, proto: NodeProto, reason: str, *, waits: bool = False) -> None:
    domain = canonical(proto.domain)
    types = tuple(_type(scope, name) for name in proto.input)
    scope.session.unsupported.append(
        Unsupported(
            label(proto), proto.op_type, domain, scope.opsets.get(domain), types, reason, scope.path, waits
        )
    )


def _note_unknown_op(scope: Scope, proto: NodeProto) -> None:
    """A node behind a broken one is a finding of its own where nothing would import its op."""
    domain = canonical(proto.domain)
    opset = scope.opsets.get(domain)
    if (proto.domain, proto.op_type, getattr(proto, "overload", "")) in scope.session.functions:
        return
    imported = opset is not None and (
        importer_of(domain, proto.op_type, opset) is not None or has_body(domain, proto.op_type, opset)
    )
    if not imported:
        _note(scope, proto, _why_not(proto.op_type))


def _type(scope: Scope, name: str) -> str:
    try:
        return str(scope.named(name).type) if name else "-"
    except CompilerError:
        return "?"


def _brief(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else "no message"


_KINDS = {
    "String": "strings have no place in the IR",
    "Regex": "strings have no place in the IR",
    "Gradient": "derivatives are taken by torch, not in the graph",
    "ImageDecoder": "images are decoded before they reach a model",
}


def _why_not(op: str) -> str:
    for start, reason in _KINDS.items():
        if op.startswith(start):
            return reason
    return "no importer for this op, and no function body that it could be expanded into"


def _attributes_of(node: OnnxNode, function: FunctionProto) -> dict[str, AttributeProto]:
    given = {one.name: one for one in function.attribute_proto}
    given.update(node.attributes())
    return given


def _without_missing(function: FunctionProto, names: Mapping[str, object]) -> list[NodeProto]:
    """The body's nodes, inputs that were left out by the caller written as left out."""
    missing = {name for name in function.input if name not in names}
    if not missing:
        return list(function.node)
    nodes = []
    for node in function.node:
        if missing.intersection(node.input):
            nodes.append(_with_inputs(node, ["" if name in missing else name for name in node.input]))
        else:
            nodes.append(node)
    return nodes


def _with_inputs(node: AnyMessage, names: list[str]) -> AnyMessage:
    """A copy of a node that takes others."""
    if isinstance(node, NodeProto):
        return NodeProto(**{**node.__dict__, "input": names})
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = names
    return copy
