"""Make PyTorch models faster by swapping the forward of layers for published, versioned kernels.

    from kernels_hub import Mode, kernelize, report

    model = kernelize(model, mode=Mode.INFERENCE)
    print(report(model))

Importing this package is cheap: torch and everything else heavy is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC = {
    "BuildError": "errors",
    "BundledLayerRepository": "repository.refs",
    "CUDAProperties": "layer.device",
    "CompiledLayer": "repository.compiled",
    "Device": "layer.device",
    "DeviceError": "errors",
    "FuncRepository": "repository.function_refs",
    "HubError": "errors",
    "HubPermissionError": "errors",
    "IntegrityError": "errors",
    "KernelImportError": "errors",
    "KernelMapping": "layer.mapping",
    "KernelizeFallback": "layer.fallback",
    "KernelsHubError": "errors",
    "LayerContractError": "errors",
    "LayerNotFoundError": "errors",
    "LayerRepository": "repository.refs",
    "LoadedKernel": "repository.load",
    "LocalFuncRepository": "repository.function_refs",
    "LocalLayerRepository": "repository.refs",
    "LockError": "errors",
    "LockedFuncRepository": "repository.function_refs",
    "LockedLayerRepository": "repository.refs",
    "MappingError": "errors",
    "MappingNotFoundError": "errors",
    "Metadata": "repository.metadata",
    "MetadataError": "errors",
    "Mode": "layer.mode",
    "ModeError": "errors",
    "NoKernelError": "errors",
    "NoVariantError": "errors",
    "OfflineError": "errors",
    "PublishError": "errors",
    "ROCMProperties": "layer.device",
    "RepoInfo": "repository.load",
    "Report": "layer.report",
    "RepositoryNotFoundError": "errors",
    "Row": "layer.report",
    "SignatureError": "errors",
    "TrustError": "errors",
    "VariantAccepted": "repository.variants",
    "VariantRejected": "repository.variants",
    "VerificationError": "errors",
    "VersionError": "errors",
    "VersionExistsError": "errors",
    "explain": "layer.kernelize",
    "get_kernel": "repository.kernel",
    "get_kernel_dep": "repository.resolved",
    "get_kernel_variants": "repository.kernel",
    "get_loaded_kernels": "repository.load",
    "get_local_kernel": "repository.kernel",
    "get_locked_kernel": "repository.kernel",
    "has_kernel": "repository.kernel",
    "install_kernel": "repository.kernel",
    "kernelize": "layer.kernelize",
    "load_kernel": "repository.kernel",
    "load_kernel_mapping": "layer.mapping_file",
    "refresh": "layer.kernelize",
    "register_kernel_mapping": "layer.mapping",
    "replace_kernel_forward_from_hub": "layer.tag",
    "report": "layer.report",
    "restore": "layer.kernelize",
    "use_kernel_forward_from_hub": "layer.tag",
    "use_kernel_func_from_hub": "layer.tag",
    "use_kernel_mapping": "layer.mapping",
    "use_kernelized_func": "layer.tag",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kernels_hub' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kernels_hub.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from kernels_hub.errors import BuildError as BuildError
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
    from kernels_hub.layer.device import CUDAProperties as CUDAProperties
    from kernels_hub.layer.device import Device as Device
    from kernels_hub.layer.device import ROCMProperties as ROCMProperties
    from kernels_hub.layer.fallback import KernelizeFallback as KernelizeFallback
    from kernels_hub.layer.kernelize import explain as explain
    from kernels_hub.layer.kernelize import kernelize as kernelize
    from kernels_hub.layer.kernelize import refresh as refresh
    from kernels_hub.layer.kernelize import restore as restore
    from kernels_hub.layer.mapping import KernelMapping as KernelMapping
    from kernels_hub.layer.mapping import register_kernel_mapping as register_kernel_mapping
    from kernels_hub.layer.mapping import use_kernel_mapping as use_kernel_mapping
    from kernels_hub.layer.mapping_file import load_kernel_mapping as load_kernel_mapping
    from kernels_hub.layer.mode import Mode as Mode
    from kernels_hub.layer.report import Report as Report
    from kernels_hub.layer.report import Row as Row
    from kernels_hub.layer.report import report as report
    from kernels_hub.layer.tag import replace_kernel_forward_from_hub as replace_kernel_forward_from_hub
    from kernels_hub.layer.tag import use_kernel_forward_from_hub as use_kernel_forward_from_hub
    from kernels_hub.layer.tag import use_kernel_func_from_hub as use_kernel_func_from_hub
    from kernels_hub.layer.tag import use_kernelized_func as use_kernelized_func
    from kernels_hub.repository.compiled import CompiledLayer as CompiledLayer
    from kernels_hub.repository.function_refs import FuncRepository as FuncRepository
    from kernels_hub.repository.function_refs import LocalFuncRepository as LocalFuncRepository
    from kernels_hub.repository.function_refs import LockedFuncRepository as LockedFuncRepository
    from kernels_hub.repository.kernel import get_kernel as get_kernel
    from kernels_hub.repository.kernel import get_kernel_variants as get_kernel_variants
    from kernels_hub.repository.kernel import get_local_kernel as get_local_kernel
    from kernels_hub.repository.kernel import get_locked_kernel as get_locked_kernel
    from kernels_hub.repository.kernel import has_kernel as has_kernel
    from kernels_hub.repository.kernel import install_kernel as install_kernel
    from kernels_hub.repository.kernel import load_kernel as load_kernel
    from kernels_hub.repository.load import LoadedKernel as LoadedKernel
    from kernels_hub.repository.load import RepoInfo as RepoInfo
    from kernels_hub.repository.load import get_loaded_kernels as get_loaded_kernels
    from kernels_hub.repository.metadata import Metadata as Metadata
    from kernels_hub.repository.refs import BundledLayerRepository as BundledLayerRepository
    from kernels_hub.repository.refs import LayerRepository as LayerRepository
    from kernels_hub.repository.refs import LocalLayerRepository as LocalLayerRepository
    from kernels_hub.repository.refs import LockedLayerRepository as LockedLayerRepository
    from kernels_hub.repository.resolved import get_kernel_dep as get_kernel_dep
    from kernels_hub.repository.variants import VariantAccepted as VariantAccepted
    from kernels_hub.repository.variants import VariantRejected as VariantRejected
