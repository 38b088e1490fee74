"""The compiler: ONNX files and PyTorch modules in, layer repositories with fused kernels out.

    from kernels_hub.compiler import Graph, evaluate, import_onnx, rewrite

    graph = Graph("double")
    x = graph.input("x", ("batch", 3))
    graph.output("y", x * 2.0)
    evaluate(graph, {"x": array})["y"]

    rewrite(import_onnx("model.onnx")).graph.to_html("model.html")

Importing this package is cheap: what a name needs is loaded when it is first used. See `ir` for the parts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from kernels_hub.compiler.ir.pictures import Renderer, draw_with

# Public name -> the module that defines it.
_PUBLIC = {
    "Candidate": "plan.selection",
    "CompilerError": "errors",
    "DType": "ir.types",
    "Decline": "engines.engine",
    "Device": "engines.engine",
    "Differentiated": "autodiff",
    "Evaluation": "ir.evaluate",
    "Executable": "executable",
    "Filter": "plan.selection",
    "Graph": "ir.graph",
    "Node": "ir.graph",
    "Note": "engines.engine",
    "OnnxImportError": "errors",
    "Outcome": "engines.engine",
    "Plan": "plan.plan",
    "Profile": "plan.profiling",
    "Rates": "plan.rates",
    "Support": "engines.engine",
    "Value": "ir.graph",
    "bind": "ir.transform",
    "check_onnx": "importers.onnx",
    "check_support": "plan.selection",
    "compile": "pipeline",
    "create_plans": "plan.selection",
    "differentiate": "autodiff",
    "dummy_weights": "ir.dummy",
    "emit_layer": "export.emit_layer",
    "evaluate": "ir.evaluate",
    "explain_rule": "rewrite.explain",
    "extract": "ir.transform",
    "import_onnx": "importers.onnx",
    "import_torch": "importers.torch_export",
    "load_executable": "executable",
    "parse_graph": "ir.parser",
    "print_graph": "ir.printer",
    "rebuild": "ir.transform",
    "rewrite": "rewrite",
    "set_plugin_paths": "engines.registry",
    "symbol": "ir.dims",
    "to_dot": "viewing.view",
    "to_html": "viewing.view",
    "to_svg": "viewing.view",
    "verify": "ir.verify",
}
# `from kernels_hub.compiler import *` loads NumPy alone: these load onnx or torch, and are imported by name.
_LOAD_MORE = {
    "Candidate", "Executable", "Filter", "Plan", "Profile", "Rates",
    "check_onnx", "check_support", "compile", "create_plans", "emit_layer", "import_onnx", "load_executable",
}  # fmt: skip

__all__ = [*sorted(_PUBLIC.keys() - _LOAD_MORE)]  # noqa: PLE0604 (made of the table)


def _renderer() -> Renderer:
    return cast("Renderer", importlib.import_module("kernels_hub.compiler.viewing.view"))


draw_with(_renderer)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kernels_hub.compiler' has no attribute {name!r}")
    module = importlib.import_module(f"kernels_hub.compiler.{_PUBLIC[name]}")
    value = module if _PUBLIC[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if TYPE_CHECKING:
    from kernels_hub.compiler.autodiff import Differentiated as Differentiated
    from kernels_hub.compiler.autodiff import differentiate as differentiate
    from kernels_hub.compiler.engines.engine import Decline as Decline
    from kernels_hub.compiler.engines.engine import Device as Device
    from kernels_hub.compiler.engines.engine import Note as Note
    from kernels_hub.compiler.engines.engine import Outcome as Outcome
    from kernels_hub.compiler.engines.engine import Support as Support
    from kernels_hub.compiler.engines.registry import set_plugin_paths as set_plugin_paths
    from kernels_hub.compiler.errors import CompilerError as CompilerError
    from kernels_hub.compiler.errors import OnnxImportError as OnnxImportError
    from kernels_hub.compiler.executable import Executable as Executable
    from kernels_hub.compiler.executable import load_executable as load_executable
    from kernels_hub.compiler.export.emit_layer import emit_layer as emit_layer
    from kernels_hub.compiler.importers.onnx import check_onnx as check_onnx
    from kernels_hub.compiler.importers.onnx import import_onnx as import_onnx
    from kernels_hub.compiler.importers.torch_export import import_torch as import_torch
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
    from kernels_hub.compiler.pipeline import compile as compile  # noqa: A004
    from kernels_hub.compiler.plan.plan import Plan as Plan
    from kernels_hub.compiler.plan.profiling import Profile as Profile
    from kernels_hub.compiler.plan.rates import Rates as Rates
    from kernels_hub.compiler.plan.selection import Candidate as Candidate
    from kernels_hub.compiler.plan.selection import Filter as Filter
    from kernels_hub.compiler.plan.selection import check_support as check_support
    from kernels_hub.compiler.plan.selection import create_plans as create_plans
    from kernels_hub.compiler.rewrite.explain import explain_rule as explain_rule
    from kernels_hub.compiler.rewrite.pipeline import rewrite as rewrite
    from kernels_hub.compiler.viewing.view import to_dot as to_dot
    from kernels_hub.compiler.viewing.view import to_html as to_html
    from kernels_hub.compiler.viewing.view import to_svg as to_svg
