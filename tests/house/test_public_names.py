"""The public names, pinned: one that appears, goes or moves is a decision, and a line of CHANGELOG.md."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kernels_hub
from kernels_hub import errors

ROOT = Path(__file__).resolve().parents[2]

NAMES = """
    __version__

    Mode Device CUDAProperties ROCMProperties KernelizeFallback
    use_kernel_forward_from_hub replace_kernel_forward_from_hub use_kernelized_func use_kernel_func_from_hub
    kernelize restore refresh wait_until_compiled explain report Report Row profiler_ranges

    FuncRepository LocalFuncRepository LockedFuncRepository
    LayerRepository LocalLayerRepository BundledLayerRepository LockedLayerRepository CompiledLayer
    KernelMapping register_kernel_mapping use_kernel_mapping load_kernel_mapping

    get_kernel get_local_kernel get_locked_kernel load_kernel get_kernel_dep
    has_kernel get_kernel_variants get_loaded_kernels install_kernel RepoInfo
    Benchmark LoadedKernel Metadata VariantAccepted VariantRejected

    KernelsHubError
    BenchmarkError BuildError CalibrationError HubError HubPermissionError IntegrityError LockError PublishError SignatureError TrustError
    VersionExistsError
    CopyBudgetError DeviceError KernelImportError LayerContractError LayerNotFoundError MappingError MappingNotFoundError
    MetadataError ModeError NoKernelError NoVariantError OfflineError RepositoryNotFoundError
    VerificationError VersionError
""".split()


def test_the_names_are_these():
    assert sorted(kernels_hub.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_can_be_imported_and_says_what_it_is(name: str):
    value = getattr(kernels_hub, name)
    if not isinstance(value, str) and callable(value):
        assert (inspect.getdoc(value) or "").strip()
        own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        assert own, f"{name} only inherits its docstring"


def test_every_error_is_public():
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined <= set(NAMES)
    assert all(issubclass(getattr(errors, name), errors.KernelsHubError) for name in defined)


def test_dir_lists_them():
    assert set(NAMES) <= set(dir(kernels_hub))


def test_star_import_gives_them_all_and_nothing_else():
    code = (
        "from kernels_hub import *; print(*sorted(n for n in globals() if n == '__version__' or n[0] != '_'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(NAMES)


def test_type_checkers_see_the_same_names():
    """The names are loaded lazily, so a type checker reads them from a stub."""
    tree = ast.parse((ROOT / "kernels_hub" / "__init__.pyi").read_text(encoding="utf-8"))
    seen = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    lazy = {name: f"kernels_hub.{module}" for name, module in kernels_hub._PUBLIC.items()}
    assert seen == lazy


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'kernels_hub' has no attribute 'kernelise'"):
        kernels_hub.kernelise


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert version("kernels-hub") == kernels_hub.__version__
