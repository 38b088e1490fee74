# The public names for type checkers: `__init__.py` loads them when they are first used, and reads nothing of this.

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

__version__: str
_PUBLIC: dict[str, str]
