"""The ONNX backend interface over the compiler: `prepare`, `run_model`, `run_node`, `supports_device`.

    import onnx.backend.test
    from kernels_hub.compiler.onnx_backend import KernelsHubBackend

    globals().update(onnx.backend.test.BackendTest(KernelsHubBackend).test_cases)

Every device is the oracle so far. A model is imported for the shapes that it is run with; where its import needs
values of inputs (a Reshape to a shape that is an input), for these values, too. Imports are kept, the newest few.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep, namedtupledict

from kernels_hub.compiler.errors import CompilerError, EvaluateError
from kernels_hub.compiler.importers.onnx import OnnxImportError, import_onnx
from kernels_hub.compiler.importers.onnx_file import read_onnx
from kernels_hub.compiler.importers.onnx_types import element_type
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.ir.types import Array

DEVICES = ("CPU", "REFERENCE")
_KEPT = 8


class PreparedModel(BackendRep):
    """A model, and the graphs that it was imported as."""

    def __init__(self, model: ModelProto) -> None:
        file = read_onnx(model)
        self.model = model
        weights = {tensor.name for tensor in file.model.graph.initializer}
        self.inputs = [one.name for one in file.model.graph.input if one.name not in weights]
        self.optional = [one.name for one in file.model.graph.input if one.name in weights]
        self.outputs = [one.name for one in file.model.graph.output]
        self._wanted: tuple[str, ...] = ()
        """Inputs whose values decide what the graph is."""
        self._graphs: OrderedDict[tuple[Any, ...], Graph] = OrderedDict()

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """The outputs, in order. inputs: arrays in the order of the model's inputs, or by name."""
        given = self._by_name(inputs)
        graph = self._graph(given)
        results = evaluate(graph, {name: given[name] for name in graph.inputs})
        arrays: tuple[Array, ...] = namedtupledict("Outputs", self.outputs)(
            *(results[name] for name in self.outputs)
        )
        return arrays

    def _by_name(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            given = {str(name): np.asarray(array) for name, array in inputs.items()}
        else:
            listed: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            names = [one.name for one in self.model.graph.input]
            names = self.inputs if len(listed) <= len(self.inputs) else names
            if len(listed) > len(names):
                raise EvaluateError(f"the model takes {len(names)} inputs, got {len(listed)}")
            for name, one in zip(names, listed, strict=False):
                if not isinstance(one, (np.ndarray, np.generic, int, float)):
                    raise EvaluateError(f"input {name!r} is a {type(one).__name__}; the IR has tensors only")
            given = {name: np.asarray(array) for name, array in zip(names, listed, strict=False)}
        missing = [name for name in self.inputs if name not in given]
        unknown = [name for name in given if name not in self.inputs and name not in self.optional]
        if missing or unknown:
            raise EvaluateError(f"the model takes {self.inputs}; missing are {missing}, unknown {unknown}")
        return given

    def _graph(self, given: Mapping[str, Array]) -> Graph:
        shapes = {name: array.shape for name, array in given.items() if name in self.inputs}
        overridden = [name for name in given if name in self.optional]
        while True:
            fixed = {
                name: given[name] for name in dict.fromkeys((*self._wanted, *overridden)) if name in given
            }
            key = (tuple(shapes.items()), *((name, array.tobytes()) for name, array in fixed.items()))
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
                return graph
            try:
                graph = import_onnx(self.model, shapes=shapes, values=fixed)
            except OnnxImportError as error:
                more = [name for name in error.wanted if name in given and name not in fixed]
                if not more:
                    raise
                self._wanted = (*self._wanted, *more)
                continue
            self._graphs[key] = graph
            while len(self._graphs) > _KEPT:
                self._graphs.popitem(last=False)
            return graph


class KernelsHubBackend(Backend):
    """See the module."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU, and REFERENCE, which is always the oracle."""
        return device.partition(":")[0].upper() in DEVICES

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> PreparedModel:
        """A model that can be run; it is imported when the first inputs tell its shapes.

        Raises ImportFailure for what is no model, CompilerError for a device that there is not.
        """
        if not cls.supports_device(device):
            raise CompilerError(f"there is no device {device!r}; there are {', '.join(DEVICES)}")
        return PreparedModel(model)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,  # noqa: ARG003  (the interface's)
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """One op on arrays. opset_version: of its domain; the newest by default."""
        listed = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        arrays = [np.asarray(one) for one in listed]
        names = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(name, element_type(types.dtype(array.dtype)), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        outputs = []
        for name in node.output:
            if name:
                outputs.append(onnx.ValueInfoProto())
                outputs[-1].name = name
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version() if not node.domain else 1)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])
        return cls.prepare(model, device).run(arrays)


prepare = KernelsHubBackend.prepare
run_model = KernelsHubBackend.run_model
run_node = KernelsHubBackend.run_node
supports_device = KernelsHubBackend.supports_device
is_compatible = KernelsHubBackend.is_compatible
