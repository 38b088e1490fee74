"""Importers of ONNX's ops, a file a family. Importing this package enters those of ONNX's own domain.

`enter_domains` enters those of others, which few models use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from kernels_hub.compiler.importers.onnx_ops import (
    control,
    conv,
    detection,
    elementwise,
    indexing,
    legacy,
    linear,
    ngrams,
    normalize,
    optional,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    sequence,
    shape,
    signal,
)

__all__ = [
    "DOMAINS",
    "control",
    "conv",
    "detection",
    "elementwise",
    "enter_domains",
    "indexing",
    "legacy",
    "linear",
    "ngrams",
    "normalize",
    "optional",
    "pool",
    "quantize",
    "random",
    "recurrent",
    "reduce",
    "resize",
    "sequence",
    "shape",
    "signal",
]

DOMAINS = {
    "com.microsoft": (
        "contrib",
        "contrib_attention",
        "contrib_cached_attention",
        "contrib_few_bits",
        "contrib_quantized",
        "contrib_standard",
    ),
    "com.microsoft.nchwc": ("contrib_nchwc",),
    "ai.onnx.ml": ("ml", "ml_features", "ml_kernels", "trees"),
    "ai.onnx.preview.training": ("training",),
}
"""Domain -> the modules of its ops."""


def enter_domains(domains: Iterable[str]) -> None:
    """Enter the importers of domains, once; those that there are no modules for are ONNX's own, or unknown."""
    for domain in domains:
        for name in DOMAINS.get(domain, ()):
            importlib.import_module(f"{__name__}.{name}")
