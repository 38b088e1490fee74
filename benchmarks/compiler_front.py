"""How long the compiler's front half takes: `python -m benchmarks.compiler_front`.

Import of ONNX and all rewrites, of ResNet-50 and of generated models of 1,000, 3,000 and 10,000 nodes; and what
`import kernels_hub.compiler` adds to Python's own start. The generated models are layers of attention, gated and
plain feed-forward parts and convolutions with batch norm, spelled as exporters spell them: layer norms and GELUs
written out, shapes computed as data, batch and length symbolic.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.harness import arguments, table, write
from benchmarks.import_time import start

SIZES = (1_000, 3_000, 10_000)
WIDTH, HEADS, WIDE = 64, 4, 128
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Of ResNet-50: blocks, channels, stride of the first block."""


class OnnxBuilder:
    """An ONNX model as it is written: `node` appends one and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(0)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        result = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [result], f"/{op}_{len(self.nodes)}", **attributes)
        )
        return result

    def weight(self, *shape: int) -> str:
        fan = int(np.prod(shape[1:])) or 1
        return self.array((self.random.standard_normal(shape) / np.sqrt(fan)).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.array(self.random.uniform(0.5, 1.5, shape).astype(np.float32))

    def array(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.array(np.float32(value))

    def batch_norm(self, x: str, channels: int) -> str:
        parts = (
            self.positive(channels),
            self.weight(channels),
            self.weight(channels),
            self.positive(channels),
        )
        return self.node("BatchNormalization", x, *parts)

    def data(self, inputs: dict[str, list[int | str]], result: str) -> bytes:
        """The file."""
        from onnx import TensorProto, helper

        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()
        ]
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "model", values, [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        data: bytes = model.SerializeToString()
        return data


def resnet50() -> tuple[bytes, int]:
    """ResNet-50, batch norms not folded; and its number of nodes. Source: arXiv 1512.03385."""
    model = OnnxBuilder()

    def conv(x: str, before: int, after: int, size: int, stride: int = 1) -> str:
        weight, pad = model.weight(after, before, size, size), size // 2
        result = model.node(
            "Conv", x, weight, kernel_shape=[size, size], strides=[stride] * 2, pads=[pad] * 4
        )
        return model.batch_norm(result, after)

    x = model.node("Relu", conv("x", 3, 64, 7, 2))
    x = model.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for blocks, channels, first in STAGES:
        for block in range(blocks):
            stride = first if block == 0 else 1
            y = model.node("Relu", conv(x, width, channels, 1))
            y = model.node("Relu", conv(y, channels, channels, 3, stride))
            y = conv(y, channels, 4 * channels, 1)
            shortcut = conv(x, width, 4 * channels, 1, stride) if block == 0 else x
            x, width = model.node("Relu", model.node("Add", y, shortcut)), 4 * channels
    x = model.node("Flatten", model.node("GlobalAveragePool", x))
    x = model.node("Gemm", x, model.weight(1000, width), model.weight(1000), transB=1)
    return model.data({"x": ["batch", 3, 224, 224]}, x), len(model.nodes)


def layers(nodes: int) -> tuple[bytes, int]:
    """Layers of the generated model until it has that many nodes; and how many it has."""
    model, x = OnnxBuilder(), "x"
    parts = (_attention, _plain, _convolution, _gated)
    for count in range(nodes):
        if len(model.nodes) >= nodes:
            break
        x = parts[count % len(parts)](model, x)
    return model.data({"x": ["batch", "length", WIDTH]}, x), len(model.nodes)


def _layer_norm(model: OnnxBuilder, x: str) -> str:
    centred = model.node("Sub", x, model.node("ReduceMean", x, model.array(np.array([-1])), keepdims=1))
    square = model.node("Pow", centred, model.number(2))
    variance = model.node("ReduceMean", square, model.array(np.array([-1])), keepdims=1)
    root = model.node("Sqrt", model.node("Add", variance, model.number(1e-5)))
    scaled = model.node("Mul", model.node("Div", centred, root), model.positive(WIDTH))
    return model.node("Add", scaled, model.weight(WIDTH))


def _linear(model: OnnxBuilder, x: str, before: int, after: int) -> str:
    return model.node("Add", model.weight(after), model.node("MatMul", x, model.weight(before, after)))


def _sizes(model: OnnxBuilder, x: str, *last: int) -> str:
    """The shape (batch, length, *last), computed as data."""
    shape = model.node("Shape", x)
    parts = [
        model.node(
            "Unsqueeze", model.node("Gather", shape, model.array(np.array(axis))), model.array(np.array([0]))
        )
        for axis in (0, 1)
    ]
    return model.node("Concat", *parts, model.array(np.array(last)), axis=0)


def _attention(model: OnnxBuilder, x: str) -> str:
    y = _layer_norm(model, x)
    heads = [
        model.node(
            "Transpose",
            model.node("Reshape", _linear(model, y, WIDTH, WIDTH), _sizes(model, y, HEADS, WIDTH // HEADS)),
            perm=order,
        )
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    ]
    scores = model.node(
        "Div", model.node("MatMul", heads[0], heads[1]), model.number((WIDTH // HEADS) ** 0.5)
    )
    mixed = model.node("MatMul", model.node("Softmax", scores, axis=-1), heads[2])
    mixed = model.node("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = model.node("Reshape", mixed, _sizes(model, x, WIDTH))
    return model.node("Add", x, _linear(model, mixed, WIDTH, WIDTH))


def _plain(model: OnnxBuilder, x: str) -> str:
    y = _linear(model, _layer_norm(model, x), WIDTH, WIDE)
    erf = model.node("Erf", model.node("Div", y, model.number(2**0.5)))
    gelu = model.node("Mul", model.node("Mul", y, model.node("Add", erf, model.number(1))), model.number(0.5))
    return model.node("Add", x, _linear(model, gelu, WIDE, WIDTH))


def _gated(model: OnnxBuilder, x: str) -> str:
    y = _layer_norm(model, x)
    gate = _linear(model, y, WIDTH, WIDE)
    gate = model.node("Mul", gate, model.node("Sigmoid", gate))
    product = model.node("Mul", gate, model.node("MatMul", y, model.weight(WIDTH, WIDE)))
    return model.node("Add", x, _linear(model, product, WIDE, WIDTH))


def _convolution(model: OnnxBuilder, x: str) -> str:
    y = model.node("Transpose", x, perm=[0, 2, 1])
    for _ in range(2):
        y = model.node("Conv", y, model.weight(WIDTH, WIDTH, 3), kernel_shape=[3], pads=[1, 1])
        y = model.node("Clip", model.batch_norm(y, WIDTH), model.number(0), model.number(6))
    return model.node("Add", x, model.node("Transpose", y, perm=[0, 2, 1]))


def seconds(data: bytes, rounds: int) -> dict[str, float]:
    """Median seconds of import and of rewrite; each round starts from the file's bytes."""
    from kernels_hub.compiler.importers.onnx import import_onnx
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    times: dict[str, list[float]] = {"import_s": [], "rewrite_s": []}
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        graph = import_onnx(data)
        imported = time.perf_counter()
        rewrite(graph)
        times["import_s"].append(imported - began)
        times["rewrite_s"].append(time.perf_counter() - imported)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=5)
    options = parser.parse_args()
    began = {"python alone": "pass", "kernels_hub.compiler": "import kernels_hub.compiler"}
    starts = {
        name: statistics.median(start(code) for _ in range(options.rounds)) for name, code in began.items()
    }
    extra_ms = round((starts["kernels_hub.compiler"] - starts["python alone"]) * 1e3, 2)
    print(f"import kernels_hub.compiler: {extra_ms} ms beyond Python's own start", flush=True)

    seconds(layers(100)[0], 1)  # the first loads the importers
    cases: dict[str, dict[str, Any]] = {}
    for label, (data, nodes) in {
        "ResNet-50": resnet50(),
        **{f"{size:,} nodes": layers(size) for size in SIZES},
    }.items():
        found: dict[str, Any] = seconds(data, options.rounds)
        both = found["import_s"] + found["rewrite_s"]
        cases[label] = {
            "nodes": nodes,
            **found,
            "both_s": round(both, 4),
            "us_per_node": round(both / nodes * 1e6),
        }
    few, many = (cases[f"{size:,} nodes"] for size in (SIZES[0], SIZES[-1]))
    growth = round(many["us_per_node"] / few["us_per_node"], 3)
    rows = [
        (label, str(case["nodes"]), *(f"{case[key]:.2f}" for key in ("import_s", "rewrite_s", "both_s")),
         str(case["us_per_node"]))
        for label, case in cases.items()
    ]  # fmt: skip
    print(table(("model", "nodes", "import s", "rewrite s", "both s", "µs a node"), rows))
    print(f"growth of the time a node from {SIZES[0]:,} to {SIZES[-1]:,} nodes: {growth} (1 is linear)")
    if options.write:
        print(write("compiler-front", {"import_ms": extra_ms, "cases": cases, "growth": growth}))


if __name__ == "__main__":
    main()
