"""Make PyTorch models faster by swapping the forward of layers for published, versioned kernels.

    from kernels_hub import Mode, kernelize, report

    model = kernelize(model, mode=Mode.INFERENCE)
    print(report(model))

Importing this package is cheap: torch and everything else heavy is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__: str

# Public name -> the module that defines it.
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


if TYPE_CHECKING:
    from kernels_hub.errors import BenchmarkError as BenchmarkError
    from kernels_hub.errors import BuildError as BuildError
    from kernels_hub.errors import CalibrationError as CalibrationError
    from kernels_hub.errors import CopyBudgetError as CopyBudgetError
    from kernels_hub.errors import DeviceError as DeviceError
    from kernels_hub.errors import HubError as HubError
    from kernels_hub.errors import HubPermissionError as HubPermissionError
    from kernels_hub.errors import IntegrityError as IntegrityError
    from kernels_hub.errors import KernelImportError as KernelImportError
    from kernels_hub.errors import KernelsHubError as KernelsHubError
    from kernels_hub.errors import LayerContractError as LayerContractError
    from kernels_hub.errors import LayerNotFoundError as LayerNotFoundError
    from kernels_hub.errors import LockError as LockError
    from kernels_hub.errors import MappingError as MappingError
    from kernels_hub.errors import MappingNotFoundError as MappingNotFoundError
    from kernels_hub.errors import MetadataError as MetadataError
    from kernels_hub.errors import ModeError as ModeError
    from kernels_hub.errors import NoKernelError as NoKernelError
    from kernels_hub.errors import NoVariantError as NoVariantError
    from kernels_hub.errors import OfflineError as OfflineError
    from kernels_hub.errors import PublishError as PublishError
    from kernels_hub.errors import RepositoryNotFoundError as RepositoryNotFoundError
    from kernels_hub.errors import SignatureError as SignatureError
    from kernels_hub.errors import TrustError as TrustError
    from kernels_hub.errors import VerificationError as VerificationError
    from kernels_hub.errors import VersionError as VersionError
    from kernels_hub.errors import VersionExistsError as VersionExistsError
    from kernels_hub.hub.function_references import FuncRepository as FuncRepository
    from kernels_hub.hub.function_references import LocalFuncRepository as LocalFuncRepository
    from kernels_hub.hub.function_references import LockedFuncRepository as LockedFuncRepository
    from kernels_hub.hub.kernels import get_kernel as get_kernel
    from kernels_hub.hub.kernels import get_kernel_variants as get_kernel_variants
    from kernels_hub.hub.kernels import get_local_kernel as get_local_kernel
    from kernels_hub.hub.kernels import get_locked_kernel as get_locked_kernel
    from kernels_hub.hub.kernels import has_kernel as has_kernel
    from kernels_hub.hub.kernels import install_kernel as install_kernel
    from kernels_hub.hub.kernels import load_kernel as load_kernel
    from kernels_hub.hub.references import BundledLayerRepository as BundledLayerRepository
    from kernels_hub.hub.references import LayerRepository as LayerRepository
    from kernels_hub.hub.references import LocalLayerRepository as LocalLayerRepository
    from kernels_hub.hub.references import LockedLayerRepository as LockedLayerRepository
    from kernels_hub.kernelization.apply import explain as explain
    from kernels_hub.kernelization.apply import kernelize as kernelize
    from kernels_hub.kernelization.apply import refresh as refresh
    from kernels_hub.kernelization.apply import restore as restore
    from kernels_hub.kernelization.compiled_layer import CompiledLayer as CompiledLayer
    from kernels_hub.kernelization.device import CUDAProperties as CUDAProperties
    from kernels_hub.kernelization.device import Device as Device
    from kernels_hub.kernelization.device import ROCMProperties as ROCMProperties
    from kernels_hub.kernelization.fallback import KernelizeFallback as KernelizeFallback
    from kernels_hub.kernelization.jit import wait_until_compiled as wait_until_compiled
    from kernels_hub.kernelization.mapping import register_kernel_mapping as register_kernel_mapping
    from kernels_hub.kernelization.mapping import use_kernel_mapping as use_kernel_mapping
    from kernels_hub.kernelization.mapping_file import load_kernel_mapping as load_kernel_mapping
    from kernels_hub.kernelization.mapping_records import KernelMapping as KernelMapping
    from kernels_hub.kernelization.mode import Mode as Mode
    from kernels_hub.kernelization.profiling import profiler_ranges as profiler_ranges
    from kernels_hub.kernelization.report import Report as Report
    from kernels_hub.kernelization.report import Row as Row
    from kernels_hub.kernelization.report import report as report
    from kernels_hub.kernelization.tag import (
        replace_kernel_forward_from_hub as replace_kernel_forward_from_hub,
    )
    from kernels_hub.kernelization.tag import use_kernel_forward_from_hub as use_kernel_forward_from_hub
    from kernels_hub.kernelization.tag import use_kernel_func_from_hub as use_kernel_func_from_hub
    from kernels_hub.kernelization.tag import use_kernelized_func as use_kernelized_func
    from kernels_hub.repository.benchmark import Benchmark as Benchmark
    from kernels_hub.repository.load import LoadedKernel as LoadedKernel
    from kernels_hub.repository.load import RepoInfo as RepoInfo
    from kernels_hub.repository.load import get_loaded_kernels as get_loaded_kernels
    from kernels_hub.repository.metadata import Metadata as Metadata
    from kernels_hub.repository.resolved import get_kernel_dep as get_kernel_dep
    from kernels_hub.repository.variants import VariantAccepted as VariantAccepted
    from kernels_hub.repository.variants import VariantRejected as VariantRejected
