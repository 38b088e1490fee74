"""Kernels run only where they are known to gain: at kernelize, and by the rows of a call."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub import (
    Mode,
    explain,
    kernelize,
    load_kernel_mapping,
    report,
    restore,
    use_kernel_mapping,
)
from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import GainTable, Shape
from kernels_hub.calibration.kinds import KINDS, class_of, from_memory, read_shape, rows_of, shapes
from kernels_hub.errors import MappingError
from kernels_hub.kernelization import gain_gate
from kernels_hub.kernelization.gain_gate import gated_forward

Tell = Callable[[str, int, int, dict[int, float]], None]


MAPPING = """
schema = 1
include = ["default"]

[[map]]
layer = "Linear"
device = "cpu"
modes = ["inference", "inference|torch_compile"]
repository = "bundled:linear"
measured = true

[[map]]
layer = "GatedMLP"
device = "cpu"
modes = ["inference"]
repository = "bundled:mlp"
measured = true
covers = ["gate_proj", "up_proj", "down_proj", "act_fn"]
"""


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tell]:
    """A mapping where gains decide, and what is known is pinned: a function that adds ratios of a class of shape."""
    path = tmp_path / "known.json"
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(path))
    table = GainTable()

    def add(kind: str, depth: int, columns: int, ratios: dict[int, float]) -> None:
        for rows, ratio in ratios.items():
            table.put(Shape(kind, "float32", depth, columns), rows, ratio)
        database.write(path, database.this_machine(), table)

    database.write(path, database.this_machine(), table)
    mapping = tmp_path / "measured.toml"
    mapping.write_text(MAPPING)
    with use_kernel_mapping(load_kernel_mapping(mapping), inherit_mapping=False):
        yield add


def _all_rows(shape: Shape, ratio: float, **others: float) -> dict[int, float]:
    return {rows: others.get(f"rows{rows}", ratio) for rows in rows_of(shape)}


LINEAR = Shape("Linear", "float32", 256, 512)


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64)).eval()


def test_until_something_is_known_the_original_runs(tell: Tell):
    model = kernelize(_linear(), mode=Mode.INFERENCE)
    assert all("forward" not in module.__dict__ for module in model.modules())
    reasons = [row.reason for row in report(model).kept]
    assert reasons and all("unknown on this processor" in str(reason) for reason in reasons)


def test_what_gains_for_no_number_of_rows_keeps_its_forward_without_a_wrapper(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.83))
    model = kernelize(_linear(), mode=Mode.INFERENCE)
    assert "forward" not in model[0].__dict__
    row = report(model).rows[1]
    assert not row.swapped
    assert row.reason == "kept: 0.83 of PyTorch here (pinned file)"
    assert (row.gain, row.gain_source) == (0.83, "pinned file")
    assert row.reason in str(report(model)) and row.reason in str(explain(_linear(), mode=Mode.INFERENCE))


def test_what_gains_everywhere_runs_without_a_test_at_the_call(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 1.5))
    model = kernelize(_linear(), mode=Mode.INFERENCE)
    assert model[0].forward.func.__module__.endswith("layers")
    row = report(model).rows[1]
    assert row.swapped and row.gain == 1.5 and row.gain_rows == ()
    assert "1.50 (pinned file)" in str(report(model))


class _Activated(nn.Module):
    """Calls GELU as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(
    ("model", "gain"),
    [
        (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1)), 1.2),
        (lambda: nn.Sequential(nn.Linear(256, 512), nn.SiLU()), 1.2),
        (_Activated, 1.2),
        (lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU()), 0.98),  # no pass is saved
        (lambda: nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64), nn.GELU()), 0.98),
    ],
    ids=["GELU", "SiLU", "function", "ReLU", "nothing"],
)
def test_a_linear_layer_with_an_activation_is_decided_by_what_both_gain(
    tell: Tell, model: Callable[[], nn.Module], gain: float
):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.98))
    tell("LinearActivation", 256, 512, _all_rows(replace(LINEAR, kind="LinearActivation"), 1.2))
    module = model().eval()
    x = torch.randn(300, 256)
    with torch.no_grad():
        expected = module(x)
        kernelize(module, mode=Mode.INFERENCE)
        row = report(module).rows[1]
        assert row.layer_name == "Linear" and (row.swapped, row.gain) == (gain > 1, gain)
        assert bool(row.followers) is (gain > 1)
        torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)
    compiled = report(kernelize(model().eval(), mode=Mode.INFERENCE | Mode.TORCH_COMPILE)).rows[1]
    assert compiled.gain == 0.98, "a compiler fuses them itself"


def test_a_linear_layer_that_loses_with_its_activation_is_kept(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 1.2))
    tell("LinearActivation", 256, 512, _all_rows(replace(LINEAR, kind="LinearActivation"), 0.9))
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(256, 512)).eval()
    rows = report(kernelize(model, mode=Mode.INFERENCE)).rows
    assert [(row.swapped, row.gain) for row in rows if row.layer_name == "Linear"] == [
        (False, 0.9),
        (True, 1.2),
    ]


def test_in_a_model_that_no_cache_holds_what_is_read_from_memory_counts(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows1024=1.3))
    tell("Linear from memory", 256, 512, {1: 1.5, 2: 1.4, 4: 1.2, 16: 0.9})
    monkeypatch.setattr(gain_gate, "last_level_cache", lambda: 1 << 20)
    small = report(kernelize(_linear(), mode=Mode.INFERENCE)).rows[1]
    assert small.swapped and small.gain_rows[0][0] > 256
    large = nn.Sequential(_linear(), nn.Embedding(1024, 512)).eval()
    row = report(kernelize(large, mode=Mode.INFERENCE)).rows[2]
    assert row.path == "0.0" and row.gain == 1.5
    assert [first for first, _ in row.gain_rows] == [1, small.gain_rows[0][0]]
    assert 4 <= row.gain_rows[0][1] < 16
    assert explain(large, mode=Mode.INFERENCE).rows[2].gain_rows == row.gain_rows
    with torch.inference_mode():
        x = torch.randn(1, 256)
        torch.testing.assert_close(large[0][0](x), nn.Linear.forward(large[0][0], x))


def test_a_convolution_without_padding_that_covers_its_image_is_measured():
    """VGG's first classifier: with padding, so many channels would be too much work for any image."""
    shape, width = read_shape("Conv2d", nn.Conv2d(512, 4096, 7, device="meta"))
    cell = class_of(shape)
    assert (shape.kind, width) == ("Conv2d 7x7/1 unpadded", 512)
    assert (cell.depth, cell.columns) == (512, 512) and 64 in rows_of(cell)
    for padded in (nn.Conv2d(512, 4096, 7, padding=3, device="meta"), nn.Conv2d(8, 8, 7, 2, device="meta")):
        assert "unpadded" not in read_shape("Conv2d", padded)[0].kind
    original = KINDS["Conv2d"].build("7x7/1 unpadded", 64, 64)
    ((x,), _), *_ = KINDS["Conv2d"].example("7x7/1 unpadded", 64, 64, 16)
    assert original(x).shape[-2:] == (1, 1), "as large as the kernel at least"


def test_classes_that_are_read_from_memory_are_of_few_rows_of_wide_products():
    assert rows_of(from_memory(LINEAR)) == [1, 2, 4, 16]
    assert rows_of(from_memory(Shape("Linear", "float32", 128, 512))) == []
    assert rows_of(from_memory(Shape("GELU", "float32", 1, 1))) == []
    odd = Shape("Linear", "float32", 300, 70_000)
    assert class_of(from_memory(odd)) == from_memory(class_of(odd))


def _watched(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the calls that a module's gate gives to the forward of its class, from now on."""
    found: list[int] = []

    class Watched:
        @staticmethod
        def forward(self: nn.Module, input: torch.Tensor) -> torch.Tensor:
            found.append(input.numel() // input.shape[-1])
            return type(self).forward(self, input)

    monkeypatch.setitem(module.forward.func.__globals__, "class_of", lambda _: Watched)
    return found


def test_rows_decide_at_the_call(tell: Tell, monkeypatch: pytest.MonkeyPatch):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows16=1.5, rows1024=1.3))
    model = nn.Sequential(nn.Linear(256, 512)).eval()
    original = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE)
    row = report(model).rows[1]
    assert row.swapped and row.gain_rows == ((8, 35), (557, math.inf))
    assert "8 to 35 rows, from 557 rows" in str(report(model))
    calls = _watched(model[0], monkeypatch)
    for shape in ((1, 256), (256,), (7, 256), (8, 256), (5, 7, 256), (36, 256), (557, 256), (3000, 256)):
        x = torch.randn(shape)
        calls.clear()
        with torch.inference_mode():
            actual = model(x)
            by_original = list(calls)
            torch.testing.assert_close(actual, original(x), rtol=1e-4, atol=1e-4)
        rows = x.numel() // 256
        assert by_original == ([] if 8 <= rows <= 35 or rows >= 557 else [rows]), shape
    with torch.inference_mode():
        torch.testing.assert_close(model[0](input=x), original[0](input=x), rtol=1e-4, atol=1e-4)


def test_a_gated_module_is_copied_pickled_and_restored(tell: Tell, monkeypatch: pytest.MonkeyPatch):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows1024=1.3))
    model = kernelize(nn.Sequential(nn.Linear(256, 512)).eval(), mode=Mode.INFERENCE)
    x = torch.randn(4, 256)
    calls = _watched(model[0], monkeypatch)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.clear()
        with torch.inference_mode():
            assert torch.equal(other(x), model(x))
        assert calls == [4, 4]
        assert [replace(row, packed_nbytes=0) for row in report(other)] == [
            replace(row, packed_nbytes=0) for row in report(model)
        ]
        assert other[0].forward.func is model[0].forward.func
    assert "forward" not in restore(model)[0].__dict__


def test_one_class_may_have_modules_of_all_kinds(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows1024=1.3))
    tell("Linear", 512, 64, _all_rows(Shape("Linear", "float32", 512, 64), 1.3))
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64), nn.Linear(64, 64))
    first = kernelize(model, mode=Mode.INFERENCE)
    assert [row.swapped for row in report(first).rows[1:]] == [True, True, False]
    bound = [module.__dict__.get("forward") for module in model]
    kernelize(model, mode=Mode.INFERENCE)
    assert [module.__dict__.get("forward") for module in model] == bound  # nothing is bound anew


def test_another_kernelize_takes_back_what_no_longer_gains(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 1.5))
    model = kernelize(nn.Sequential(nn.Linear(256, 512)), mode=Mode.INFERENCE)
    assert "forward" in model[0].__dict__
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.5))
    kernelize(model, mode=Mode.INFERENCE)
    assert "forward" not in model[0].__dict__


def test_copies_are_not_made_ahead_for_a_few_rows(tell: Tell):
    few = {rows: 1.5 if rows <= 16 else 0.8 for rows in rows_of(LINEAR)}
    tell("Linear", 256, 512, few)
    model = kernelize(nn.Sequential(nn.Linear(256, 512)), mode=Mode.INFERENCE)
    assert report(model).swapped and report(model).packed_nbytes == 0
    tell("Linear", 256, 512, _all_rows(LINEAR, 1.5))
    model = kernelize(nn.Sequential(nn.Linear(256, 512)), mode=Mode.INFERENCE)
    assert report(model).packed_nbytes > 0


def test_a_block_that_is_kept_leaves_its_children_their_kernels(tell: Tell):
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_attention_heads=4)
    from transformers.models.llama.modeling_llama import LlamaMLP

    block = Shape("GatedMLP", "float32", 256, 512)
    tell("GatedMLP", 256, 512, _all_rows(block, 0.8))
    tell("Linear", 256, 512, _all_rows(LINEAR, 1.5))
    names = [row.layer_name for row in report(kernelize(LlamaMLP(config), mode=Mode.INFERENCE)).swapped]
    assert names.count("Linear") == 2 and "GatedMLP" not in names
    tell("GatedMLP", 256, 512, _all_rows(block, 1.2))
    names = [row.layer_name for row in report(kernelize(LlamaMLP(config), mode=Mode.INFERENCE)).swapped]
    assert names == ["GatedMLP"]


def test_a_whole_layer_of_few_rows_leaves_others_to_the_kernels_inside_of_it(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
):
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    from transformers.models.bert.modeling_bert import BertLayer

    layer, first = Shape("BertEncoderLayer", "float32", 256, 512), LINEAR
    few = {rows: 1.5 if rows <= 16 else 0.8 for rows in rows_of(layer)}
    tell("BertEncoderLayer", 256, 512, few)
    tell("LinearActivation", 256, 512, _all_rows(replace(first, kind="LinearActivation"), 1.5))
    config = transformers.BertConfig(hidden_size=256, intermediate_size=512, num_attention_heads=4)
    config._attn_implementation = "sdpa"
    original = BertLayer(config).eval()
    model = kernelize(copy.deepcopy(original), mode=Mode.INFERENCE, wait=True)
    assert [row.layer_name for row in report(model).swapped] == ["BertEncoderLayer", "LinearActivation"]
    calls = []
    inside = model.intermediate.forward.func
    monkeypatch.setitem(
        model.intermediate.__dict__,
        "forward",
        type(model.intermediate.forward)(
            lambda self, x: calls.append(x.shape[1]) or inside(self, x), model.intermediate
        ),
    )
    with torch.inference_mode():
        for length in (7, 300):
            x = torch.randn(1, length, 256)
            torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-4)
    assert calls == [300]
    tell("BertEncoderLayer", 256, 512, _all_rows(layer, 1.5))
    model = kernelize(copy.deepcopy(original), mode=Mode.INFERENCE)
    assert [row.layer_name for row in report(model).swapped] == ["BertEncoderLayer"]


def test_a_gated_model_runs_under_torch_compile(tell: Tell):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows1024=1.3))
    model = nn.Sequential(nn.Linear(256, 512)).eval()
    kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.inference_mode():
        for rows in (4, 1024):
            x = torch.randn(rows, 256)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_a_gated_model_is_exported_for_all_rows(tell: Tell, strict: bool):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.8, rows1024=1.3))
    model = kernelize(nn.Sequential(nn.Linear(256, 512)).eval(), mode=Mode.INFERENCE)
    assert report(model).swapped
    rows = torch.export.Dim("rows", max=1 << 20)
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(8, 256),), dynamic_shapes=({0: rows},), strict=strict
        )
        for count in (4, 1024):
            x = torch.randn(count, 256)
            torch.testing.assert_close(exported.module()(x), model(x), rtol=1e-5, atol=1e-5)


def test_functions_have_their_kernels_where_rows_are_too_few_for_the_block(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
):
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=256, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=32, attn_implementation="sdpa",
    )  # fmt: skip
    attention = Shape("RotaryAttention 1:2", "float32", 256, 64)
    tell("RotaryAttention 1:2", 256, 64, _all_rows(attention, 0.8, rows256=1.3, rows1024=1.5))
    model = LlamaModel(config).eval()
    few, many = torch.randint(32, (1, 4)), torch.randint(32, (1, 256))
    with torch.inference_mode():
        expected = [model(tokens).last_hidden_state for tokens in (few, many)]
    kernelize(model, mode=Mode.INFERENCE)
    names = [row.layer_name for row in report(model).swapped]
    assert "RotaryAttention" in names and "rotary_pos_emb" in names
    block = model.layers[0].self_attn
    forward = block.forward.func
    kernelize(model, mode=Mode.INFERENCE)
    assert block.forward.func is forward  # what is packed stays packed
    original = undecorated(forward.__globals__["original"].__globals__["_kernel"])
    (name,) = [one for one in original.__code__.co_names if one.endswith("_of_apply_rotary_pos_emb")]
    rotate, lengths = original.__globals__[name], []
    assert "rotary" in rotate.__globals__["_kernel"].func.__module__

    def counting(q: torch.Tensor, *args: object) -> object:
        lengths.append(q.shape[2])
        return rotate(q, *args)

    monkeypatch.setitem(original.__globals__, name, counting)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.inference_mode():
            for tokens, value in zip((few, many), expected, strict=True):
                torch.testing.assert_close(each(tokens).last_hidden_state, value, rtol=1e-4, atol=1e-5)
    assert lengths == [4] * 3
    restore(model)
    assert "forward" not in vars(block) and not report(model).swapped


def undecorated(forward: FunctionType) -> FunctionType:
    """The function inside of a decorator for renamed arguments, as transformers has it from 5.24 on."""
    return next((one for one in of_closure(forward) if isinstance(one, FunctionType)), forward)


def of_closure(function: FunctionType) -> list[object]:
    """What a function uses of functions around it; of a partial among it, the function inside."""
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    return [getattr(one, "func", one) for one in inside]


class _Takes(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
        return x * scale + shift


def test_a_gate_passes_all_arguments_on():
    def kernel(self: nn.Module, x: torch.Tensor, *args: float, **kwargs: float) -> tuple[object, ...]:
        return ("kernel", args, kwargs)

    forward = gated_forward(kernel, _Takes, ((4, 8.0), (100, math.inf)))
    module = _Takes()
    assert forward(module, torch.ones(4), 3.0, shift=1.0) == ("kernel", (3.0,), {"shift": 1.0})
    assert forward(module, x=torch.ones(100)) == ("kernel", (), {})
    assert forward(module, torch.ones(3), 3.0, shift=1.0).tolist() == [4.0] * 3
    assert forward(module, torch.ones(9)).tolist() == [2.0] * 9
    assert forward is gated_forward(kernel, _Takes, ((4, 8.0), (100, math.inf)))


@pytest.mark.parametrize("wrong", [None, "text", 3, [1.0]], ids=repr)
@pytest.mark.parametrize("made", [lambda: nn.RMSNorm(64), nn.GELU, lambda: nn.LayerNorm(64)])
def test_the_original_says_that_an_input_is_no_tensor(made: Callable[[], nn.Module], wrong: object):
    original = made().eval()

    def kernel(self: nn.Module, input: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the kernel was called")

    forward = gated_forward(kernel, type(original), ((1, math.inf),))
    with pytest.raises(TypeError) as expected:
        original(wrong)
    with pytest.raises(TypeError, match=re.escape(str(expected.value))):
        forward(original, wrong)


def wide(self: nn.Linear, input: Tensor) -> Tensor:
    return F.linear(input, self.weight, self.bias) + 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_closed_gate_runs_what_linear_has_for_a_forward(monkeypatch: pytest.MonkeyPatch, when: str):
    """PyTorch's own is a product that the gate computes itself; what somebody put in its place is called."""
    layer, x = nn.Linear(8, 6), torch.randn(3, 8)
    expected = layer(x)
    if when == "before":
        monkeypatch.setattr(nn.Linear, "forward", wide)
    gate = gated_forward(lambda self, input: input * 0, nn.Linear, ((80, math.inf),))
    if when == "after":
        assert torch.equal(gate(layer, x), expected)
        assert not gate(layer, torch.randn(10, 8)).any()
        monkeypatch.setattr(nn.Linear, "forward", wide)
    assert torch.equal(gate(layer, x), expected + 1)


def test_a_closed_gate_calls_linear_where_pytorch_does(monkeypatch: pytest.MonkeyPatch):
    gate = gated_forward(lambda self, input: input * 0, nn.Linear, ((80, math.inf),))
    layer, x = nn.Linear(8, 6), torch.randn(3, 8)
    monkeypatch.setattr(F, "linear", lambda input, weight, bias: (input, weight, bias))
    found = gate(layer, x)
    assert found[0] is x and found[1] is layer.weight and found[2] is layer.bias


def test_a_gate_decides_under_torch_compile():
    def kernel(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + 100

    forward = gated_forward(kernel, _Takes, ((8, math.inf),))
    module = _Takes()
    compiled = torch.compile(lambda x: forward(module, x), fullgraph=True, backend="eager")
    assert compiled(torch.ones(8)).tolist() == [101.0] * 8
    assert compiled(torch.ones(7)).tolist() == [2.0] * 7


# -- kinds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", KINDS)
def test_a_module_that_is_made_of_a_shape_has_that_shape(layer: str):
    from kernels_hub.calibration.kinds import read_shape, split_kind

    pytest.importorskip("transformers", reason="needs the package transformers")
    shape = min(shapes(layer, "float32"), key=lambda each: each.depth * each.columns)
    kind = KINDS[layer]
    form = split_kind(shape.kind)[1]
    module = kind.build(form, shape.depth, shape.columns)
    read = read_shape(layer, module)
    assert read is not None
    assert read[0].cell == shape
    rows = rows_of(shape)
    assert rows
    for args, _ in kind.example(form, shape.depth, shape.columns, rows[-1]):
        assert args[0].numel() == rows[-1] * read[1]


def test_what_cannot_be_read_is_not_known(tell: Tell):
    from kernels_hub.calibration.kinds import read_shape

    assert read_shape("Linear", nn.ReLU()) is None
    assert read_shape("NoSuchLayer", nn.Linear(2, 2)) is None


def test_a_mapping_may_not_ask_for_gains_of_what_is_not_measured(tmp_path: Path):
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING.replace('layer = "GatedMLP"', 'layer = "LayerNorm"'))
    with pytest.raises(MappingError, match="'LayerNorm'"):
        load_kernel_mapping(path)


def test_a_mapping_that_does_not_ask_runs_its_kernels_whatever_they_gain(tell: Tell, tmp_path: Path):
    tell("Linear", 256, 512, _all_rows(LINEAR, 0.5))
    path = tmp_path / "asks_nothing.toml"
    path.write_text(MAPPING.replace("measured = true", "measured = false"))
    with use_kernel_mapping(load_kernel_mapping(path), inherit_mapping=False):
        assert report(kernelize(_linear(), mode=Mode.INFERENCE)).swapped
