"""Make PyTorch models faster by swapping the forward of layers for published, versioned kernels.

    from kernels_hub import Mode, kernelize, report

    model = kernelize(model, mode=Mode.INFERENCE)
    print(report(model))

Importing this package is cheap: torch and everything else heavy is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it. For type checkers they stand in `__init__.pyi`, which costs no import time.
_PUBLIC = {
    "Benchmark": "repository.benchmark",
    "BenchmarkError": "errors",
    "BuildError": "errors",
    "BundledLayerRepository": "hub.references",
    "CUDAProperties": "kernelization.device",
    "CalibrationError": "errors",
    "CompiledLayer": "kernelization.compiled_layer",
    "CopyBudgetError": "errors",
    "Device": "kernelization.device",
    "DeviceError": "errors",
    "FuncRepository": "hub.function_references",
    "HubError": "errors",
    "HubPermissionError": "errors",
    "IntegrityError": "errors",
    "KernelImportError": "errors",
    "KernelMapping": "kernelization.mapping_records",
    "KernelizeFallback": "kernelization.fallback",
    "KernelsHubError": "errors",
    "LayerContractError": "errors",
    "LayerNotFoundError": "errors",
    "LayerRepository": "hub.references",
    "LoadedKernel": "repository.load",
    "LocalFuncRepository": "hub.function_references",
    "LocalLayerRepository": "hub.references",
    "LockError": "errors",
    "LockedFuncRepository": "hub.function_references",
    "LockedLayerRepository": "hub.references",
    "MappingError": "errors",
    "MappingNotFoundError": "errors",
    "Metadata": "repository.metadata",
    "MetadataError": "errors",
    "Mode": "kernelization.mode",
    "ModeError": "errors",
    "NoKernelError": "errors",
    "NoVariantError": "errors",
    "OfflineError": "errors",
    "PublishError": "errors",
    "ROCMProperties": "kernelization.device",
    "RepoInfo": "repository.load",
    "Report": "kernelization.report",
    "RepositoryNotFoundError": "errors",
    "Row": "kernelization.report",
    "SignatureError": "errors",
    "TrustError": "errors",
    "VariantAccepted": "repository.variants",
    "VariantRejected": "repository.variants",
    "VerificationError": "errors",
    "VersionError": "errors",
    "VersionExistsError": "errors",
    "explain": "kernelization.apply",
    "get_kernel": "hub.kernels",
    "get_kernel_dep": "repository.resolved",
    "get_kernel_variants": "hub.kernels",
    "get_loaded_kernels": "repository.load",
    "get_local_kernel": "hub.kernels",
    "get_locked_kernel": "hub.kernels",
    "has_kernel": "hub.kernels",
    "install_kernel": "hub.kernels",
    "kernelize": "kernelization.apply",
    "load_kernel": "hub.kernels",
    "load_kernel_mapping": "kernelization.mapping_file",
    "profiler_ranges": "kernelization.profiling",
    "refresh": "kernelization.apply",
    "register_kernel_mapping": "kernelization.mapping",
    "replace_kernel_forward_from_hub": "kernelization.tag",
    "report": "kernelization.report",
    "restore": "kernelization.apply",
    "use_kernel_forward_from_hub": "kernelization.tag",
    "use_kernel_func_from_hub": "kernelization.tag",
    "use_kernel_mapping": "kernelization.mapping",
    "use_kernelized_func": "kernelization.tag",
    "wait_until_compiled": "kernelization.jit",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    module = "version" if name == "__version__" else _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'kernels_hub' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kernels_hub.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
