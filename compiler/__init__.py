"""The compiler: ONNX files and PyTorch modules in, layer repositories with fused kernels out.

    from kernels_hub.compiler import Graph, evaluate

    graph = Graph("double")
    x = graph.input("x", ("batch", 3))
    graph.output("y", x * 2.0)
    evaluate(graph, {"x": array})["y"]

Importing this package is cheap: what a name needs is loaded when it is first used. See `ir` for the parts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that defines it.
_PUBLIC = {
    "CompilerError": "errors",
    "DType": "ir.types",
    "Evaluation": "ir.evaluate",
    "Graph": "ir.graph",
    "Node": "ir.graph",
    "Value": "ir.graph",
    "bind": "ir.transform",
    "dummy_weights": "ir.dummy",
    "evaluate": "ir.evaluate",
    "extract": "ir.transform",
    "parse_graph": "ir.parser",
    "print_graph": "ir.printer",
    "rebuild": "ir.transform",
    "symbol": "ir.dims",
    "verify": "ir.verify",
}

__all__ = [*sorted(_PUBLIC)]  # noqa: PLE0604 (made of the table)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kernels_hub.compiler' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kernels_hub.compiler.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from kernels_hub.compiler.errors import CompilerError as CompilerError
    from kernels_hub.compiler.ir.dims import symbol as symbol
    from kernels_hub.compiler.ir.dummy import dummy_weights as dummy_weights
    from kernels_hub.compiler.ir.evaluate import Evaluation as Evaluation
    from kernels_hub.compiler.ir.evaluate import evaluate as evaluate
    from kernels_hub.compiler.ir.graph import Graph as Graph
    from kernels_hub.compiler.ir.graph import Node as Node
    from kernels_hub.compiler.ir.graph import Value as Value
    from kernels_hub.compiler.ir.parser import parse_graph as parse_graph
    from kernels_hub.compiler.ir.printer import print_graph as print_graph
    from kernels_hub.compiler.ir.transform import bind as bind
    from kernels_hub.compiler.ir.transform import extract as extract
    from kernels_hub.compiler.ir.transform import rebuild as rebuild
    from kernels_hub.compiler.ir.types import DType as DType
    from kernels_hub.compiler.ir.verify import verify as verify
