"""Mapping files: what is read, what is refused and how that is said, and that reading twice costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import (
    BundledLayerRepository,
    CompiledLayer,
    CUDAProperties,
    Device,
    LayerRepository,
    LocalLayerRepository,
    LockedLayerRepository,
    MappingError,
    MappingNotFoundError,
    Mode,
    ROCMProperties,
    load_kernel_mapping,
    use_kernel_mapping,
)
from kernels_hub.kernelization.device import Target
from kernels_hub.kernelization.mapping import KernelMapping, active_mapping
from kernels_hub.kernelization.mapping_file import shipped_mappings
from kernels_hub.kernelization.mapping_table import find_line
from tests.kernelization.broken_mappings import BROKEN, Broken
from tests.kernelization.mapping_schema import schema_errors

WriteMapping = Callable[..., Path]


@pytest.fixture
def write_mapping(tmp_path: Path) -> WriteMapping:
    """write_mapping(text, name) -> path of a mapping file; `schema = 1` is put before the text."""

    def write(text: str, name: str = "mapping.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("schema = 1\n" + textwrap.dedent(text))
        return path

    return write


# -- what is read --------------------------------------------------------------------------------


def test_maps(write_mapping: WriteMapping, tmp_path: Path) -> None:
    mapping = load_kernel_mapping(
        write_mapping(
            """
            [[map]]
            layers = ["A", "B"]
            device = "cpu"
            modes = ["inference", "inference|torch_compile"]
            repository = "bundled:activation"

            [[map]]
            layer = "A"
            device = "cpu"
            modes = ["training"]
            repository = "local:kernels/mine"
            layer_name = "Fast"
            covers = ["fc1", "fc2"]

            [[map]]
            layer = "A"
            device = [
                { type = "cuda", min_capability = 80, max_capability = 89 },
                { type = "hip", min_capability = 94 },
            ]
            repository = "org/name"
            version = ">=1.0,<2"

            [[map]]
            layer = "B"
            device = { type = "cuda", max_capability = 75 }
            repository = "org/name"
            revision = "abc"
            """
        )
    )
    cpu = mapping.find("A", Target("cpu"))
    assert cpu is not None
    inference = cpu.modes[Mode.INFERENCE]
    assert inference.repository == BundledLayerRepository("activation", layer_name="A")
    assert cpu.modes[Mode.INFERENCE | Mode.TORCH_COMPILE] is inference
    training = cpu.modes[Mode.TRAINING]
    assert training.repository == LocalLayerRepository(tmp_path / "kernels/mine", layer_name="Fast")
    assert training.covers == ("fc1", "fc2")

    cuda, rocm = mapping.entries["A"]["cuda"][0], mapping.entries["A"]["rocm"][0]
    assert cuda.device == Device("cuda", CUDAProperties(80, 89))
    assert rocm.device == Device("rocm", ROCMProperties(94))
    assert cuda.modes == {Mode.FALLBACK: cuda.modes[Mode.FALLBACK]}
    assert cuda.modes[Mode.FALLBACK].repository == LayerRepository(
        "org/name", layer_name="A", version=">=1.0,<2"
    )
    old = mapping.entries["B"]["cuda"][0]
    assert old.device == Device("cuda", CUDAProperties(0, 75))
    assert old.modes[Mode.FALLBACK].repository == LayerRepository("org/name", layer_name="B", revision="abc")


def test_a_layer_as_the_projects_lock_pins_it(write_mapping: WriteMapping, tmp_path: Path) -> None:
    text = '[[map]]\nlayer = "A"\ndevice = "cpu"\nrepository = "locked:org/name"\n'
    path = write_mapping(text)
    expected = LockedLayerRepository("org/name", layer_name="A", lockfile=path.parent / "kernels.lock")
    entry = load_kernel_mapping(path).find("A", Target("cpu"))
    assert entry is not None and entry.modes[Mode.FALLBACK].repository == expected
    with pytest.raises(MappingError, match="locked:org/name"):
        load_kernel_mapping(write_mapping(text.replace("org/name", "name")))
    with pytest.raises(MappingError, match="no version"):
        load_kernel_mapping(write_mapping(text + "version = 1\n"))


def test_a_layer_that_is_compiled_here(write_mapping: WriteMapping) -> None:
    text = '[[map]]\nlayers = ["A", "B"]\ndevice = "cpu"\nrepository = "compiled"\n'
    mapping = load_kernel_mapping(write_mapping(text))
    assert _cpu(mapping, "A") == CompiledLayer("A")
    assert _cpu(mapping, "B") == CompiledLayer("B")
    named = (
        text
        + 'dynamic = { x = ["batch", "", "length"], y = { 1 = "length" } }\nranges = { length = [1, 64] }\n'
    )
    path = write_mapping(named)
    assert schema_errors(tomllib.loads(path.read_text())) == []
    assert _cpu(load_kernel_mapping(path), "A") == CompiledLayer(
        "A", dynamic={"x": {0: "batch", 2: "length"}, "y": {1: "length"}}, ranges={"length": (1, 64)}
    )
    fixed = load_kernel_mapping(write_mapping(text + "dynamic = false\n"))
    assert _cpu(fixed, "A") == CompiledLayer("A", dynamic=False)


def _cpu(mapping: KernelMapping, name: str) -> object:
    entry = mapping.find(name, Target("cpu"))
    assert entry is not None
    return entry.modes[Mode.FALLBACK].repository


def test_conditions(write_mapping: WriteMapping) -> None:
    mapping = load_kernel_mapping(
        write_mapping(
            """
            [[map]]
            layer = "Linear"
            device = "cpu"
            repository = "bundled:linear"
            [map.where]
            dtype = ["float32", "bfloat16"]
            in_features = ">=64"
            weight.ndim = 2
            """
        )
    )
    entry = mapping.find("Linear", Target("cpu"))
    assert entry is not None
    where = entry.modes[Mode.FALLBACK].where
    assert where is not None
    assert where(nn.Linear(64, 8)) is None
    assert where(nn.Linear(63, 8)) == "its in_features is 63, this applies to >=64"
    assert (
        where(nn.Linear(64, 8, dtype=torch.float64))
        == "its dtype is float64, this applies to float32 or bfloat16"
    )


TAGS = """
[[tag]]
layer = "Double"
classes = ["{module}:Doubl*"]
forward = ["double"]
positional = true
where = {{ scale = ">0" }}

[contract.double]
source = '''
def forward(self, x):
    return twice(x) * self.scale
'''
names = {{ twice = {{ contract = ["add", "times"] }} }}

[contract.add]
source = "def twice(x): return x + x"

[contract.times]
source = "def twice(x): return 2 * x"

[[tag]]
layer = "twice"
functions = ["{module}:twice"]
"""


def twice(x: Any) -> Any:
    return x + x


class Doubler(nn.Module):
    scale = 1.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return twice(hidden) * self.scale


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_tags(write_mapping: WriteMapping) -> None:
    (rule,) = load_kernel_mapping(write_mapping(TAGS.format(module=__name__))).rules
    decision = rule.decide_class(Doubler)
    assert decision is not None
    assert (decision.layer_name, decision.reason, decision.positional) == ("Double", None, True)
    assert decision.where is not None
    assert decision.where(Doubler()) is None

    declined = rule.decide_class(Doubling)
    assert declined is not None
    assert declined.layer_name == "Double"
    assert declined.reason == (
        "its forward differs from the known formula: "
        "statement 1 is `return x * 2`, not `return twice(x) * self.scale`"
    )
    assert rule.decide_class(nn.Linear) is None

    function = rule.decide_function(twice)
    assert function is not None
    assert (function.layer_name, function.reason) == ("twice", None)
    assert rule.decide_function(len) is None
    assert rule.decide_function(textwrap.dedent) is None


def test_tags_may_name_a_class_by_a_module_that_exports_it(write_mapping: WriteMapping) -> None:
    (rule,) = load_kernel_mapping(
        write_mapping('[[tag]]\nlayer = "Linear"\nclasses = ["torch.nn:Linear"]\n')
    ).rules
    assert rule.decide_class(nn.Linear) is not None
    assert rule.decide_class(nn.Bilinear) is None
    assert rule.decide_class(type("Linear", (nn.Linear,), {"__module__": "elsewhere"})) is None


# -- include -------------------------------------------------------------------------------------


def _map(layer: str, repository: str) -> str:
    return f'[[map]]\nlayer = "{layer}"\ndevice = "cpu"\nrepository = "bundled:{repository}"\n'


def _repository_of(mapping: KernelMapping, layer: str) -> str:
    entry = mapping.find(layer, Target("cpu"))
    assert entry is not None
    return str(entry.modes[Mode.FALLBACK].repository)


def test_own_tables_lie_over_included_ones(write_mapping: WriteMapping) -> None:
    write_mapping(_map("A", "first") + _map("B", "first") + _map("C", "first"), "first.toml")
    write_mapping(_map("B", "second") + _map("C", "second"), "sub/second.toml")
    path = write_mapping('include = ["./first.toml", "sub/second.toml"]\n' + _map("C", "own"))
    mapping = load_kernel_mapping(path)
    assert _repository_of(mapping, "A").startswith("bundled:first")
    assert _repository_of(mapping, "B").startswith("bundled:second")
    assert _repository_of(mapping, "C").startswith("bundled:own")


def test_included_contracts_and_tags(write_mapping: WriteMapping) -> None:
    write_mapping(TAGS.format(module=__name__), "base.toml")
    own = f'[[tag]]\nlayer = "Mine"\nclasses = ["{__name__}:Doubler"]\nforward = ["double"]\n'
    (rule,) = load_kernel_mapping(write_mapping('include = ["base.toml"]\n' + own)).rules
    decision = rule.decide_class(Doubler)
    assert decision is not None
    assert decision.layer_name == "Mine"
    assert rule.decide_function(twice) is not None


def test_files_that_include_themselves(write_mapping: WriteMapping) -> None:
    write_mapping('include = ["b.toml"]\n', "a.toml")
    path = write_mapping('include = ["a.toml"]\n', "b.toml")
    with pytest.raises(
        MappingError,
        match=r"a\.toml, line 2: include\[0\]: files may not include themselves: .*b.toml -> .*a.toml -> .*b",
    ):
        load_kernel_mapping(path)


def test_an_include_that_is_not_there(write_mapping: WriteMapping) -> None:
    path = write_mapping('include = ["defualt"]\n')
    with pytest.raises(
        MappingNotFoundError,
        match=r"mapping\.toml, line 2: include\[0\]: no mapping at .*Shipped mappings are attention, compiled",
    ):
        load_kernel_mapping(path)


# -- names, paths, caching -----------------------------------------------------------------------


def test_shipped_names_and_paths_are_told_apart(
    write_mapping: WriteMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_mapping(_map("A", "mine"), "torch.toml")
    monkeypatch.chdir(path.parent)
    assert "Linear" not in load_kernel_mapping("torch.toml").entries
    assert _repository_of(load_kernel_mapping("torch.toml"), "A").startswith("bundled:mine")
    assert load_kernel_mapping("torch") is not load_kernel_mapping("./torch.toml")
    assert load_kernel_mapping(path) is load_kernel_mapping(str(path))
    assert {"default", "torch", "transformers"} <= set(shipped_mappings())


@pytest.mark.parametrize("name", ["no_such_mapping", "no/such/file.toml", ".", "nothing.toml"])
def test_what_is_not_there(name: str) -> None:
    with pytest.raises(
        MappingNotFoundError,
        match="Shipped mappings are attention, compiled, decoders, default, encoders, feed_forward, fused_loss, "
        "mixtures, post_norm_encoders, pre_norm_encoders, scores, torch, transformers, vision",
    ) as caught:
        load_kernel_mapping(name)
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)


def test_read_once_until_a_file_changes(write_mapping: WriteMapping) -> None:
    base = write_mapping(_map("A", "first"), "base.toml")
    path = write_mapping('include = ["base.toml"]\n')
    before = load_kernel_mapping(path)
    assert load_kernel_mapping(path) is before
    write_mapping(_map("A", "second"), "base.toml")
    os.utime(base, ns=(1, 1))
    after = load_kernel_mapping(path)
    assert _repository_of(before, "A").startswith("bundled:first")
    assert _repository_of(after, "A").startswith("bundled:second")
    base.unlink()
    with pytest.raises(MappingNotFoundError):
        load_kernel_mapping(path)


def test_a_mapping_file_as_the_default_mapping(
    write_mapping: WriteMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB_DEFAULT_MAPPING", str(write_mapping(_map("OnlyHere", "b"))))
    with use_kernel_mapping({}):
        assert "OnlyHere" not in active_mapping().names()  # the tests' registry inherits nothing
    from kernels_hub.kernelization import mapping as mapping_module

    monkeypatch.setattr(mapping_module._REGISTRY, "inherits_default", True)
    assert active_mapping().names() == {"OnlyHere"}


def test_loading_imports_nothing_heavy() -> None:
    script = (
        "import sys; from kernels_hub import load_kernel_mapping; load_kernel_mapping('default');"
        "heavy = {'torch', 'transformers', 'numpy', 'triton', 'huggingface_hub'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_mistakes_are_located_and_explained(broken: Broken, write_mapping: WriteMapping) -> None:
    path = write_mapping(broken.text)
    with pytest.raises(MappingError) as caught:
        load_kernel_mapping(path)
    assert str(caught.value).startswith(f"{path}, {broken.place}: ")
    assert broken.message in str(caught.value)


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_the_json_schema_refuses_the_same(broken: Broken) -> None:
    document = tomllib.loads("schema = 1\n" + broken.text)
    assert bool(schema_errors(document)) is broken.in_schema


def test_no_schema_version(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("include = ['torch']\n")
    with pytest.raises(
        MappingError, match="the key 'schema' is missing: expected the version of the format, 1"
    ):
        load_kernel_mapping(path)
    path.write_text("schema = 2\n")
    with pytest.raises(
        MappingError, match=r"m\.toml, line 1: schema: this version of kernels_hub reads schema 1, got 2"
    ):
        load_kernel_mapping(path)
    path.write_text("schema = true\n")
    with pytest.raises(MappingError, match="got True"):
        load_kernel_mapping(path)


def test_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("schema = 1\n[[map]\n")
    with pytest.raises(MappingError, match=r"m\.toml is not TOML: .*line 2"):
        load_kernel_mapping(path)
    path.write_bytes(b"schema = 1\n# \xff\n")
    with pytest.raises(MappingError, match=r"m\.toml: expected a TOML file in UTF-8"):
        load_kernel_mapping(path)


def test_a_broken_file_leaves_the_mapping_in_force(write_mapping: WriteMapping) -> None:
    before = active_mapping()
    path = write_mapping("x = 1\n")
    with pytest.raises(MappingError), use_kernel_mapping(load_kernel_mapping(path)):
        pass
    assert active_mapping() == before


LINES = """schema = 1
[contract.a]
source = '''
def f(x):
    x = 3
[[map]]
'''
names = { x = "m" }

[[map]]  # first
layer = "A"

[[map]]
device = { type = "cuda" }
[map.where]
"a.b" = 1
c.d = 2
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ((), None),
        (("schema",), 1),
        (("contract", "a"), 2),
        (("contract", "a", "names", "x"), 8),
        (("map",), None),
        (("map", 0), 10),
        (("map", 0, "layer"), 11),
        (("map", 1), 13),
        (("map", 1, "device", "type"), 14),
        (("map", 1, "device", "missing"), 14),
        (("map", 1, "where"), 15),
        (("map", 1, "where", "a.b"), 16),
        (("map", 1, "where", "a", "b"), 16),
        (("map", 1, "where", "c", "d"), 17),
        (("nothing",), None),
    ],
)
def test_lines(keys: tuple[str | int, ...], line: int | None) -> None:
    assert find_line(LINES, keys) == line
