"""Layers where there is no C++ compiler: their bytecode runs, follows weights as C++ does, or a line says why it cannot."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels_hub import get_local_kernel
from kernels_hub.compiler.errors import BuildError, EngineError
from kernels_hub.compiler.export import bytecode_files
from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.runtime.bytecode import FORMAT, TRANSFORMS, read_words, write_words
from kernels_hub.compiler.runtime.errors import BuildError as RuntimeBuildError
from tests.compiler.export.emitted_layers import gated_mlp
from tests.tolerances import assert_close
from tests.wheel_interpreter import wheel_interpreter, write_wheel

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_interpreter(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    monkeypatch.setenv("KERNELS_HUB_CXX", "none")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))


def fresh(emitted: Emitted, folder: Path | None = None) -> Any:
    """The layer as a process that has loaded nothing has it; its files are in another folder, where one is given."""
    layer = get_local_kernel(emitted.path, backend="cpu").program.LAYER
    return type(layer)(layer.table, folder or layer.folder, layer.shipped)


def agrees(layer: Any, module: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    x = torch.randn(*shape, 64, dtype=dtype)
    with torch.no_grad():
        assert_close(layer.call(module, x), module(x), dtype=dtype)


@pytest.mark.usefixtures("no_compiler")
def test_bytecode_runs_with_the_native_guard(mlp: Emitted):
    layer, module = fresh(mlp), gated_mlp().module
    for shape in ((2, 5), (1, 1), (3, 70)):
        agrees(layer, module, *shape)
    assert layer.engine == "bytecode" and not layer.fallbacks
    assert layer._builder.path.name == "program.bytecode"
    assert layer.known(module)._guard._asked is not None, "Python compares, at a third of the speed"


def in_place(module: nn.Module) -> None:
    with torch.no_grad():
        module.gate_proj.weight.mul_(2)


def through_data(module: nn.Module) -> None:
    module.gate_proj.weight.data[0, 0] += 3


def replaced(module: nn.Module) -> None:
    module.gate_proj.weight = nn.Parameter(module.gate_proj.weight.detach() + 1)


def loaded(module: nn.Module) -> None:
    module.load_state_dict({name: one + 0.5 for name, one in module.state_dict().items()})


def moved_there_and_back(module: nn.Module) -> None:
    module.double()
    module.float()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("change", [in_place, through_data, replaced, loaded, moved_there_and_back])
def test_weights_are_followed(mlp: Emitted, change: Callable[[nn.Module], None]):
    layer, module = fresh(mlp), gated_mlp().module
    layer.be_strict(module, True)
    agrees(layer, module, 2, 5)
    change(module)
    agrees(layer, module, 2, 5)
    assert not layer.fallbacks


@pytest.mark.usefixtures("no_compiler")
def test_another_dtype_is_the_originals(mlp: Emitted):
    layer, module = fresh(mlp), gated_mlp().module.double()
    agrees(layer, module, 2, 5, dtype=torch.float64)
    assert "dtype float64" in layer.fallbacks


@pytest.mark.usefixtures("no_compiler")
def test_copies_have_weights_of_their_own(mlp: Emitted):
    layer, module = fresh(mlp), gated_mlp().module
    agrees(layer, module, 2, 5)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        in_place(twin)
        agrees(layer, twin, 2, 5)
        agrees(layer, module, 2, 5)


@pytest.mark.usefixtures("no_compiler")
def test_threads_run_it_at_once(mlp: Emitted):
    layer, module = fresh(mlp), gated_mlp().module
    inputs = [torch.randn(1 + index % 3, 5, 64) for index in range(24)]
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: _without_gradients(layer, module, x), inputs))
    for x, result in zip(inputs, found, strict=True):
        with torch.no_grad():
            assert_close(result, module(x))


def _without_gradients(layer: Any, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = layer.call(module, x)
    return result


# -- what cannot be run


def a_damaged_file(file: Path, wheel: Path) -> Path:
    head, _, rest = file.read_bytes().partition(b"\n")
    file.write_bytes(head + b"\n" + rest[:-9] + bytes(9))
    return wheel


def another_format(file: Path, wheel: Path) -> Path:
    file.write_bytes(file.read_bytes().replace(f" {FORMAT} ".encode(), f" {TRANSFORMS + 1} ".encode(), 1))
    return wheel


def a_text(file: Path, wheel: Path) -> Path:
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    return wheel


def an_interpreter_of_another_format(file: Path, wheel: Path) -> Path:
    names = ("load", "free", "configure", "packed_bytes", "pack", "prepare", "run", "step")
    functions = "".join(f"void kh_bytecode_{name}() {{}}\n" for name in names)
    return write_wheel(
        file.parent / "wheel",
        f'extern "C" {{\n{functions}int kh_bytecode_runs(long) {{ return 0; }}\nint kh_runs_here() {{ return 1; }}\n}}',
    )


def an_older_wheel(file: Path, wheel: Path) -> Path:
    return write_wheel(file.parent / "wheel", 'extern "C" int kh_runs_here() { return 1; }\n')


def a_wheel_for_another_machine(file: Path, wheel: Path) -> Path:
    other = Path(shutil.copytree(wheel, file.parent / "wheel"))
    index = json.loads((other / "index.json").read_text())
    (other / "index.json").write_text(json.dumps({**index, "machine": "riscv64-linux"}))
    return other


def a_damaged_interpreter(file: Path, wheel: Path) -> Path:
    other = Path(shutil.copytree(wheel, file.parent / "wheel"))
    with (other / "kernels-here.so").open("ab") as library:
        library.write(b"!")
    return other


def no_wheel(file: Path, wheel: Path) -> Path:
    return Path("ignore")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (a_damaged_file, "is damaged: its words are not what was published"),
        (
            another_format,
            f"is bytecode of format {TRANSFORMS + 1}, this layer's runtime loads formats {FORMAT} to {TRANSFORMS}",
        ),
        (a_text, "is no bytecode"),
        (an_interpreter_of_another_format, f"runs another format of bytecode than {FORMAT}"),
        (an_older_wheel, "holds none of this layer's"),
        (a_wheel_for_another_machine, "is for riscv64-linux"),
        (a_damaged_interpreter, "kernels-here.so is damaged"),
        (no_wheel, "none is installed"),
    ],
)
def test_the_original_runs_and_a_line_says_why(
    mlp: Emitted,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path, Path], Path],
    reason: str,
):
    folder = Path(shutil.copytree(mlp.path / "cpu", tmp_path / "cpu"))
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(change(folder / "program.bytecode", wheel)))
    layer, module = fresh(mlp, folder), gated_mlp().module
    x = torch.randn(2, 5, 64)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(layer.call(module, x), module(x))
    (line,) = [one.message for one in caplog.records if "runs the original forward" in one.message]
    assert reason in line and "no C++ compiler found" in line and "\n" not in line


def test_bytecode_takes_the_place_of_a_compiler_that_fails(
    mlp: Emitted,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho no headers >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("KERNELS_HUB_CXX", str(compiler))
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    layer, module = fresh(mlp), gated_mlp().module
    with caplog.at_level(logging.WARNING):
        agrees(layer, module, 2, 5)
    assert layer.engine == "bytecode"
    assert any("no headers" in one.message and "is interpreted" in one.message for one in caplog.records)


def test_beside_a_compiler_the_layer_is_built(mlp: Emitted, wheel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    layer, module = fresh(mlp), gated_mlp().module
    agrees(layer, module, 2, 5)
    assert layer.engine == "cpp" and layer._builder.path.suffix == ".so"


# -- export


class Shifted(nn.Module):
    """Another function of the same arguments for each sign."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight) * self.sign


class Scattered(nn.Module):
    """Sums by index, for which bytecode has no form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).scatter_add(-1, (x > 0).long(), x * self.weight)


def exported(module: nn.Module, out: Path, **options: Any) -> Emitted:
    given = {"benchmark": False, "training": False, "triton": False, **options}
    return emit_layer((module, (torch.randn(4, 8),)), layer_name=type(module).__name__, out=out, **given)


def test_it_runs_while_a_layer_is_written(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    emitted = exported(Shifted(), tmp_path / "layer")
    assert emitted.checked.bytecode == ("program.bytecode",) and not emitted.checked.interpreted
    assert (
        "Bytecode ran while this was written, and gave the same." in (emitted.path / "README.md").read_text()
    )


def test_wrong_bytecode_is_found(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", str(wheel))
    other = exported(Shifted(-1.0), tmp_path / "other")
    monkeypatch.setattr(
        "kernels_hub.compiler.export.emit_layer.bytecode_of",
        lambda programs: other.bytecode if list(programs) else (),
    )
    with pytest.raises(EngineError, match="in its bytecode"):
        exported(Shifted(), tmp_path / "layer")
    assert not (tmp_path / "layer").exists()


def test_what_bytecode_does_not_express_has_cpp_alone(tmp_path: Path):
    emitted = exported(Scattered(), tmp_path / "layer")
    (file,) = emitted.bytecode
    assert file.content is None and not any(name.endswith(".bytecode") for name in emitted.files)
    assert f"`program.cpp` has no bytecode: {file.reason}" in (emitted.path / "README.md").read_text()


@pytest.mark.usefixtures("no_compiler")
def test_a_layer_is_written_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And built from the same files where there is one."""
    emitted = exported(Shifted(), tmp_path / "layer", training=True)
    assert emitted.checked.interpreted and emitted.gradients is not None and emitted.gradients.cases
    assert {"cpu/program.cpp", "cpu/program.bytecode"} <= set(emitted.files)
    card = (emitted.path / "README.md").read_text()
    assert "all figures above are of it" in card and "no C++ compiler, on" in card
    monkeypatch.delenv("KERNELS_HUB_CXX")
    layer, module, x = fresh(emitted), Shifted(), torch.randn(4, 8)
    with torch.no_grad():
        assert_close(layer.call(module, x), module(x))
    assert layer.engine == "cpp"


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_all_of_it_must_be_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        EngineError, match=r"Scattered needs a C\+\+ compiler, which is not here: .*scattered"
    ):
        exported(Scattered(), tmp_path / "layer")
    monkeypatch.setenv("KERNELS_HUB_PREBUILT", "ignore")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found .* none is installed"):
        exported(Shifted(), tmp_path / "layer")
    assert not (tmp_path / "layer").exists()


def test_other_operands_than_the_cpp_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One table describes both programs."""
    generate = bytecode_files.generate

    def with_another_size(schedule: Any) -> Any:
        code = generate(schedule)
        return type(code)(**{**vars(code), "sizes": ("n", *code.sizes)})

    monkeypatch.setattr(bytecode_files, "generate", with_another_size)
    (file,) = exported(Shifted(), tmp_path / "layer").bytecode
    assert file.content is None and "other operands" in file.reason


def test_words_come_back():
    words = [0, -1, 1 << 62, -(1 << 62), 4286578688]
    assert list(read_words(write_words(words), Path("a.bytecode"))) == words
    with pytest.raises(RuntimeBuildError, match="is no bytecode"):
        read_words(b"", Path("a.bytecode"))
