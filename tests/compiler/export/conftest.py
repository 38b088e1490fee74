"""What is emitted once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.compiler.export.emit_layer import Emitted, emit_layer
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.compiler.export.emitted_layers import (
    BATCH,
    LENGTH,
    Case,
    bert,
    gated_mlp,
    llama,
    normed,
    token_ids,
    write_onnx,
)


@pytest.fixture(scope="session")
def emitted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    return tmp_path_factory.mktemp("emitted")


def emit_case(case: Case, name: str, folder: Path) -> Emitted:
    return emit_layer(
        (case.module, case.args, case.kwargs),
        layer_name=name,
        out=folder / name,
        dynamic_shapes=case.dynamic_shapes,
        benchmark=False,
        training=False,
    )


@pytest.fixture(scope="session")
def mlp(emitted_folder: Path) -> Emitted:
    return emit_case(gated_mlp(), "GatedMLP", emitted_folder)


@pytest.fixture(scope="session")
def mlp_dtypes(emitted_folder: Path) -> Emitted:
    """Two programs, with native code and GPU binaries that come along."""
    case = gated_mlp()
    return emit_layer(
        (case.module, case.args, case.kwargs),
        layer_name="GatedMLP",
        out=emitted_folder / "GatedMLPDtypes",
        dynamic_shapes=case.dynamic_shapes,
        dtypes=("float32", "bfloat16"),
        aot=("sm_90", "gfx942"),
        prebuilt=True,
        benchmark=False,
        training=False,
    )


@pytest.fixture(scope="session")
def normed_layer(emitted_folder: Path) -> Emitted:
    return emit_case(normed(), "Normed", emitted_folder)


@pytest.fixture(scope="session")
def bert_layer(emitted_folder: Path) -> Emitted:
    return emit_layer(
        bert(),
        kwargs={"input_ids": token_ids()},
        layer_name="BertLayer",
        out=emitted_folder / "BertLayer",
        dynamic_shapes={"input_ids": {0: BATCH, 1: LENGTH}},
        submodule="encoder.layer.0",
        benchmark=False,
        training=False,
    )


@pytest.fixture(scope="session")
def llama_layer(emitted_folder: Path) -> Emitted:
    return emit_layer(
        llama(),
        kwargs={"input_ids": token_ids(), "use_cache": False},
        layer_name="LlamaDecoderLayer",
        out=emitted_folder / "LlamaDecoderLayer",
        dynamic_shapes={"input_ids": {0: BATCH, 1: LENGTH}, "use_cache": None},
        submodule="layers.0",
        benchmark=False,
        training=False,
    )


@pytest.fixture(scope="session")
def onnx_layer(emitted_folder: Path) -> Emitted:
    write_onnx(emitted_folder / "encoder.onnx")
    return emit_layer(
        emitted_folder / "encoder.onnx", layer_name="Encoder", out=emitted_folder / "Encoder", benchmark=False
    )
