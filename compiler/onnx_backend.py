"""The ONNX backend interface over the compiler: `prepare`, `run_model`, `run_node`, `supports_device`.

    import onnx.backend.test
    from kernels_hub.compiler.onnx_backend import KernelsHubBackend

    globals().update(onnx.backend.test.BackendTest(KernelsHubBackend).test_cases)

On CPU and CUDA a model is compiled (`PreparedModel.engines` tells what ran it), on REFERENCE the oracle runs it.
A model is imported for the shapes that it is run with; where its import needs values of inputs (a Reshape to a
shape that is an input), for these values, too. What was made of the newest few is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto
from onnx.backend.base import Backend, BackendRep, namedtupledict

from kernels_hub.compiler.engines.devices import find_device
from kernels_hub.compiler.errors import CompilerError, EvaluateError, OnnxImportError
from kernels_hub.compiler.executable import Executable
from kernels_hub.compiler.importers.onnx import Given, OnnxProgram, import_onnx_program
from kernels_hub.compiler.importers.onnx_file import read_onnx
from kernels_hub.compiler.importers.onnx_types import element_type
from kernels_hub.compiler.ir import types
from kernels_hub.compiler.ir.evaluate import evaluate
from kernels_hub.compiler.pipeline import compile as compile_graph
from kernels_hub.compiler.runtime.newest import Newest

DEVICES = ("CPU", "CUDA", "REFERENCE")
_KEPT = 8


@dataclass(frozen=True)
class BackendProgram:
    """A model as it was imported, and what runs it: None for the oracle."""

    imported: OnnxProgram
    executable: Executable | None

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine of each segment."""
        return ("reference",) if self.executable is None else self.executable.plan.engines

    def run(self, given: Mapping[str, Given]) -> dict[str, Given]:
        """The model's outputs from its inputs, by name."""
        inputs = self.imported.flatten(given)
        if self.executable is None:
            return self.imported.unflatten(evaluate(self.imported.graph, inputs))
        return self.imported.unflatten(self.executable.arrays(inputs))


class PreparedModel(BackendRep):
    """A model on a device, and the programs that were made of it."""

    def __init__(self, model: ModelProto, device: str = "REFERENCE") -> None:
        self.device = device
        file = read_onnx(model)
        self.model = model
        weights = {tensor.name for tensor in file.model.graph.initializer}
        self.kinds = {one.name: _kinds(one.type) for one in file.model.graph.input}
        """Input -> what it may be: of tensor, sequence, optional."""
        self.inputs = [name for name in self.kinds if name not in weights]
        self.optional = [name for name in self.kinds if name in weights]
        self.outputs = [one.name for one in file.model.graph.output]
        self._wanted: tuple[str, ...] = ()
        """Inputs whose values decide what the graph is."""
        self._programs: Newest[tuple[Any, ...], BackendProgram] = Newest(_KEPT)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine of each segment of what ran last, in order; empty before the first run."""
        return next(reversed(self._programs.values())).engines if self._programs else ()

    def run(self, inputs: Any, **_: Any) -> tuple[Given, ...]:
        """The outputs, in order. inputs: arrays in the order of the model's inputs, or by name.

        A sequence is a list of arrays, an optional that is not there None; on both sides.
        """
        given = self._by_name(inputs)
        results = self._program(given).run(given)
        record: Any = namedtupledict("Outputs", self.outputs)
        outputs: tuple[Given, ...] = record(*(results[name] for name in self.outputs))
        return outputs

    def _by_name(self, inputs: Any) -> dict[str, Given]:
        if isinstance(inputs, Mapping):
            named = {str(name): one for name, one in inputs.items()}
        else:
            listed: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            names = self.inputs if len(listed) <= len(self.inputs) else list(self.kinds)
            if len(listed) > len(names):
                raise EvaluateError(f"the model takes {len(names)} inputs, got {len(listed)}")
            named = dict(zip(names, listed, strict=False))
        missing = [name for name in self.inputs if name not in named]
        unknown = [name for name in named if name not in self.kinds]
        if missing or unknown:
            raise EvaluateError(f"the model takes {self.inputs}; missing are {missing}, unknown {unknown}")
        return {name: self._given(name, one) for name, one in named.items()}

    def _given(self, name: str, one: Any) -> Given:
        kinds = self.kinds[name]
        if one is None and "optional" in kinds:
            return None
        if isinstance(one, (list, tuple)) and "sequence" in kinds:
            return [np.asarray(element) for element in one]
        if "sequence" in kinds or not isinstance(one, (np.ndarray, np.generic, int, float)):
            raise EvaluateError(
                f"input {name!r} is a {type(one).__name__}; the model takes: {', '.join(kinds)}"
            )
        return np.asarray(one)

    def _program(self, given: Mapping[str, Given]) -> BackendProgram:
        shapes = {name: _shapes(one) for name, one in given.items() if name in self.inputs}
        overridden = [name for name in given if name in self.optional]
        while True:
            fixed = {
                name: given[name] for name in dict.fromkeys((*self._wanted, *overridden)) if name in given
            }
            key = (tuple(shapes.items()), *((name, _bytes(one)) for name, one in fixed.items()))
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                return program
            try:
                imported = import_onnx_program(self.model, shapes=shapes, values=fixed)
            except OnnxImportError as error:
                more = [name for name in error.wanted if name in given and name not in fixed]
                if not more:
                    raise
                self._wanted = (*self._wanted, *more)
                continue
            program = BackendProgram(imported, self._compiled(imported))
            self._programs[key] = program
            return program

    def _compiled(self, imported: OnnxProgram) -> Executable | None:
        if self.device.upper() == "REFERENCE":
            return None
        return compile_graph(imported.graph, self.device.lower())


def _kinds(declared: TypeProto) -> tuple[str, ...]:
    """From the outside in: ("optional", "sequence")."""
    kinds = []
    while (kind := declared.WhichOneof("value")) in {"optional_type", "sequence_type"}:
        kinds.append(kind.removesuffix("_type"))
        declared = getattr(declared, kind).elem_type
    return tuple(kinds) or ("tensor",)


def _shapes(one: Given) -> Any:
    return None if one is None else tuple(map(np.shape, one)) if isinstance(one, list) else one.shape


def _bytes(one: Given) -> Any:
    return None if one is None else tuple(map(_bytes, one)) if isinstance(one, list) else one.tobytes()


class KernelsHubBackend(Backend):
    """See the module."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU; CUDA where there is such a GPU; and REFERENCE, the oracle, which runs on the CPU."""
        if device.upper() == "REFERENCE":
            return True
        if device.partition(":")[0].upper() not in DEVICES:
            return False
        try:
            find_device(device.lower())
        except CompilerError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> PreparedModel:
        """A model that can be run; it is imported when the first inputs tell its shapes.

        Raises ImportFailure for what is no model, CompilerError for a device that there is not.
        """
        if not cls.supports_device(device):
            here = ", ".join(name for name in DEVICES if cls.supports_device(name))
            raise CompilerError(f"there is no device {device!r}; there are {here}")
        return PreparedModel(model, device)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,  # noqa: ARG003  (the interface's)
        **kwargs: Any,
    ) -> tuple[Given, ...]:
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
