"""Importing kernels: once per content, by any number of threads, and without a trace of a failure."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import py_compile
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kernels_hub.errors import KernelImportError, KernelsHubError, RepositoryNotFoundError
from kernels_hub.repository.bundled import bundled_folder
from kernels_hub.repository.digest import list_files
from kernels_hub.repository.load import KernelFiles, get_loaded_kernels, import_kernel
from kernels_hub.repository.metadata import Metadata

THREADS = 8


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kernels under test append to, as `builtins.kernel_log`."""
    entries: list[str] = []
    monkeypatch.setattr(builtins, "kernel_log", entries, raising=False)
    return entries


@pytest.fixture
def kernel(tmp_path: Path, write_files) -> Iterator[object]:
    """Make a kernel of files; every test's differs, so that none shares a module with another's."""

    def make(files: dict[str, str], folder: str = "kernel", name: str = "relu", **fields) -> KernelFiles:
        path = write_files(tmp_path / folder, files | {"which_test.txt": tmp_path.name})
        return KernelFiles(name, "torch-cpu", (path,), list_files(path), **fields)

    return make


def _modules_of(module_name: str) -> set[str]:
    return {name for name in sys.modules if name == module_name or name.startswith(module_name + ".")}


def test_imports_a_package_with_submodules(kernel) -> None:
    files = kernel(
        {
            "__init__.py": "from . import layers\nfrom .inner.deep import VALUE\n",
            "layers.py": "NAME = __name__\n",
            "inner/__init__.py": "",
            "inner/deep.py": "from .. import layers\nVALUE = layers.NAME\n",
        }
    )
    module = import_kernel(files)
    assert module.VALUE == module.layers.__name__
    assert module.__name__.startswith("relu_cpu_")
    assert module.__path__ == [str(files.folders[0])]
    assert sys.modules[module.__name__] is module
    assert importlib.import_module(module.__name__) is module


def test_folders_are_laid_over_one_another(tmp_path: Path, write_files) -> None:
    first = write_files(
        tmp_path / "a", {"__init__.py": "from .b import B\nfrom .sub.two import TWO", "sub/one.py": ""}
    )
    second = write_files(tmp_path / "b", {"b.py": "B = 'b'", "sub/two.py": "from . import one\nTWO = 2"})
    module = import_kernel(
        KernelFiles("over", "torch-cpu", (first, second), list_files(first) | list_files(second))
    )
    assert module.B == "b"
    assert module.TWO == 2


def test_runs_once_under_many_threads(kernel, log: list[str]) -> None:
    files = kernel(
        {
            "__init__.py": "import time\nkernel_log.append('start')\ntime.sleep(0.05)\nfrom .late import OK",
            "late.py": "import time\ntime.sleep(0.05)\nOK = True\nkernel_log.append('end')\n",
        }
    )
    start = threading.Barrier(THREADS)

    def load(_: int) -> ModuleType:
        start.wait()
        module = import_kernel(files)
        assert module.OK  # no thread sees a module that is still being imported
        return module

    with ThreadPoolExecutor(THREADS) as pool:
        modules = set(pool.map(load, range(THREADS)))
    assert len(modules) == 1
    assert log == ["start", "end"]


def test_kernels_import_side_by_side(kernel) -> None:
    """Two kernels, each of which waits until the other's import runs too."""
    meeting = threading.Barrier(2)
    builtins.kernel_meeting = meeting  # type: ignore[attr-defined]
    body = "kernel_meeting.wait(timeout=20)\n"
    both = [kernel({"__init__.py": body + f"ID = {i}"}, folder=str(i)) for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [module.ID for module in pool.map(import_kernel, both)] == [0, 1]


def test_equal_content_is_shared(kernel, log: list[str]) -> None:
    body = {"__init__.py": "kernel_log.append('run')"}
    here, there = kernel(body, folder="here"), kernel(body, folder="there", name="other")
    assert import_kernel(here) is import_kernel(there)
    assert log == ["run"]
    assert [loaded.kernel for loaded in get_loaded_kernels()].count(here) == 1


def test_equal_content_elsewhere_takes_the_place_of_a_folder_that_is_gone(
    kernel, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    code = {
        "__init__.py": "kernel_log.append(__name__)\nfrom pathlib import Path\nHOME = Path(__file__).parent\n",
        "data.txt": "data",
        "late.py": "VALUE = 1",
    }
    first, second, third = (kernel(code, folder=name) for name in ("one", "two", "three"))
    gone = import_kernel(first)
    assert import_kernel(second) is gone, "still there"
    shutil.rmtree(first.folders[0])
    there = import_kernel(second)
    assert there is not gone and there.HOME == second.folders[0]
    assert (there.HOME / "data.txt").read_text() == "data"
    assert importlib.import_module(f"{there.__name__}.late").VALUE == 1
    assert import_kernel(second) is import_kernel(third) is there
    assert {one.module for one in get_loaded_kernels()} >= {gone, there}
    shutil.rmtree(second.folders[0])
    assert import_kernel(third).HOME == third.folders[0]
    assert len(log) == len(set(log)) == 3
    assert not caplog.records


def test_the_module_of_a_folder_that_is_gone_serves_where_no_second_one_can_be(
    kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builtins, "registered_once", [], raising=False)
    code = {"__init__.py": "assert not registered_once, 'registered twice'\nregistered_once.append(1)\n"}
    first, second = kernel(code, folder="one"), kernel(code, folder="two")
    gone = import_kernel(first)
    shutil.rmtree(first.folders[0])
    assert import_kernel(second) is gone
    assert "is not there any more" in caplog.text and "registered twice" in caplog.text


def test_other_content_of_the_same_name_is_another_module(kernel) -> None:
    one = import_kernel(kernel({"__init__.py": "VALUE = 1"}, folder="one"))
    two = import_kernel(kernel({"__init__.py": "VALUE = 2"}, folder="two"))
    assert (one.VALUE, two.VALUE) == (1, 2)
    assert one.__name__ != two.__name__


def test_an_edit_is_never_hidden_by_bytecode(kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same path, same size, same second: Python's own bytecode cache would serve the old code."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for value in range(5):
        files = kernel({"__init__.py": "from .inner import VALUE", "inner.py": f"VALUE = {value}"})
        assert import_kernel(files).VALUE == value
    assert not list(files.folders[0].rglob("__pycache__"))


def test_bytecode_is_kept_where_it_may_be(kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = kernel({"__init__.py": "from . import inner", "inner.py": ""}, bytecode=True)
    import_kernel(files)
    assert len(list((files.folders[0] / "__pycache__").glob("*.pyc"))) == 2


def test_planted_bytecode_is_not_run(kernel) -> None:
    files = kernel({"__init__.py": "from .inner import VALUE", "inner.py": "VALUE = 'source'"})
    folder = files.folders[0]
    planted = folder / "planted.py"
    planted.write_text("VALUE = 'planted'")
    target = importlib.util.cache_from_source(str(folder / "inner.py"))
    py_compile.compile(str(planted), target, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert import_kernel(files).VALUE == "source"


def test_a_copy_of_the_library_runs_as_the_library_was_compiled(kernel) -> None:
    library = Path(importlib.import_module("kernels_hub.compiler.runtime.newest").__file__)
    text = library.read_text(encoding="utf-8")
    files = {
        "__init__.py": "from .compiler.runtime import changed, newest, sizes\n",
        "compiler/runtime/newest.py": text,
        "compiler/runtime/changed.py": text,
        "compiler/runtime/sizes.py": f"{text}\nOWN = True\n",
    }
    module = import_kernel(kernel(files))
    copied, changed = module.newest, module.changed
    assert _code_file(copied) == str(library)
    assert copied.__file__ != str(library)
    assert copied.__name__.endswith(".compiler.runtime.newest")
    assert _code_file(changed) == changed.__file__, "the library has no module of that name"
    assert module.sizes.OWN, "the library's module of that name has another text"
    assert _code_file(module.sizes) == module.sizes.__file__


def _code_file(module: ModuleType) -> str:
    """The file whose code ran: newest.py has one class."""
    return module.Newest.__init__.__code__.co_filename


def test_submodules_import_lazily(kernel) -> None:
    files = kernel(
        {
            "__init__.py": "def late():\n    from . import heavy\n    return heavy.VALUE\n",
            "heavy.py": "VALUE = 'heavy'",
        }
    )
    module = import_kernel(files)
    assert f"{module.__name__}.heavy" not in sys.modules
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: module.late(), range(4))) == {"heavy"}


def test_a_module_may_replace_itself(kernel) -> None:
    """As packages that import their parts lazily do."""
    body = "import sys, types\nproxy = sys.modules[__name__] = types.ModuleType(__name__)\nproxy.VALUE = 1"
    files = kernel({"__init__.py": body})
    assert import_kernel(files).VALUE == 1
    assert import_kernel(files) is import_kernel(files) is sys.modules[files.module_name]


def test_missing_submodule_is_an_ordinary_import_error(kernel) -> None:
    files = kernel({"__init__.py": "try:\n    from . import extra\nexcept ImportError:\n    extra = None\n"})
    assert import_kernel(files).extra is None


def test_source_and_data_can_be_read(kernel) -> None:
    from importlib import resources

    files = kernel({"__init__.py": "def f(x):\n    return x + 1\n", "data/table.txt": "42"})
    module = import_kernel(files)
    assert inspect.getsource(module.f) == "def f(x):\n    return x + 1\n"
    assert resources.files(module).joinpath("data/table.txt").read_text() == "42"
    assert Path(module.__file__).parent == files.folders[0]


def test_native_extension_modules_load(kernel) -> None:
    """What an arch variant holds; a copy of one of NumPy's stands in."""
    import numpy.random._mt19937 as extension

    files = kernel({"__init__.py": "from . import _mt19937 as native\n"})
    source = Path(extension.__file__)
    (files.folders[0] / source.name).write_bytes(source.read_bytes())
    module = import_kernel(KernelFiles("native", "torch-cpu", files.folders, list_files(files.folders[0])))
    assert module.native.__name__ == f"{module.__name__}._mt19937"
    assert module.native.__file__ == str(files.folders[0] / source.name)


# -- failures ---------------------------------------------------------------------------------------


def test_a_failure_leaves_no_trace_and_chains_its_cause(kernel) -> None:
    files = kernel({"__init__.py": "from . import layers\nraise ZeroDivisionError('boom')", "layers.py": ""})
    with pytest.raises(KernelImportError) as caught:
        import_kernel(files)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert isinstance(caught.value, (ImportError, KernelsHubError))
    for part in ("'relu'", "torch-cpu", str(files.folders[0]), "ZeroDivisionError", "boom"):
        assert part in str(caught.value)
    assert not _modules_of(files.module_name)
    assert files not in [loaded.kernel for loaded in get_loaded_kernels()]


FAILURES = {
    "syntax": ("def f(:\n", SyntaxError),
    "missing module": ("import no_such_module_anywhere", ModuleNotFoundError),
    "missing name": ("from .layers import Nothing", ImportError),
    "null byte": ("a = 1\0", (SyntaxError, ValueError)),  # the latter by Python up to 3.11.3
    "exit": ("import sys\nsys.exit('this GPU is not supported')", SystemExit),
}


@pytest.mark.parametrize("case", FAILURES)
def test_every_kind_of_failure_is_an_import_error(kernel, case: str) -> None:
    body, cause = FAILURES[case]
    files = kernel({"__init__.py": body, "layers.py": ""})
    with pytest.raises(KernelImportError) as caught:
        import_kernel(files)
    assert isinstance(caught.value.__cause__, cause)
    assert not _modules_of(files.module_name)


def test_an_interrupt_passes_and_leaves_no_trace(kernel) -> None:
    files = kernel({"__init__.py": "from . import layers\nraise KeyboardInterrupt", "layers.py": ""})
    with pytest.raises(KeyboardInterrupt):
        import_kernel(files)
    assert not _modules_of(files.module_name)


RAISE_UNTIL_READY = "if not kernel_state.ready:\n    raise OSError('not ready')\n"


def test_retry_after_a_failure(kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(ready=False)
    monkeypatch.setattr(builtins, "kernel_state", state, raising=False)
    files = kernel(
        {
            "__init__.py": "from . import layers\n" + RAISE_UNTIL_READY,
            "layers.py": "VALUE = 1\n",
        }
    )
    with pytest.raises(KernelImportError, match="not ready"):
        import_kernel(files)
    state.ready = True
    assert import_kernel(files).layers.VALUE == 1


def test_retry_after_operators_were_registered(kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed attempt's operators are gone, even while its exception is held."""
    state = SimpleNamespace(ready=False)
    monkeypatch.setattr(builtins, "kernel_state", state, raising=False)
    shared = bundled_folder() / "registration"
    files = kernel(
        {
            "__init__.py": "from . import operators\n" + RAISE_UNTIL_READY,
            "operators.py": textwrap.dedent(
                """
                import torch
                from .registration import define
                twice = define(
                    "twice(Tensor x) -> Tensor",
                    {"CompositeExplicitAutograd": lambda x: x * 2},
                    torch.empty_like,
                    backward=lambda ctx, grad: grad * 2,
                )
                """
            ),
            **{path.name: path.read_text(encoding="utf-8") for path in shared.glob("*.py")},
        }
    )
    import torch

    with pytest.raises(KernelImportError) as caught:
        import_kernel(files)
    state.ready = True
    module = import_kernel(files)
    x = torch.ones(2, requires_grad=True)
    module.operators.twice(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert caught.value.__cause__ is not None


def test_all_threads_learn_of_a_failure(kernel) -> None:
    files = kernel(
        {
            "__init__.py": "import time\nfrom . import layers\ntime.sleep(0.01)\nraise OSError('no')",
            "layers.py": "",
        }
    )
    start = threading.Barrier(4)

    def load(_: int) -> str:
        start.wait()
        with pytest.raises(KernelImportError) as caught:
            import_kernel(files)
        return str(caught.value.__cause__)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(load, range(4))) == ["no"] * 4
    assert not _modules_of(files.module_name)


def test_no_package(kernel) -> None:
    with pytest.raises(RepositoryNotFoundError, match=r"no __init__\.py"):
        import_kernel(kernel({"layers.py": ""}))


def test_missing_python_packages_are_named_before_import(kernel, log: list[str]) -> None:
    metadata = Metadata("relu", python_depends=("einops", "no-such-package-anywhere"))
    files = kernel({"__init__.py": "kernel_log.append('run')"}, metadata=metadata)
    with pytest.raises(KernelImportError, match=r"pip install .*no-such-package-anywhere"):
        import_kernel(files)
    assert log == []


def test_a_cycle_between_imports_does_not_deadlock(tmp_path: Path) -> None:
    """Thread 1 imports a kernel that imports a module; thread 2 imports that module, which loads the
    kernel. Python detects the cycle, as it does between two ordinary modules."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "__init__.py").write_text(
        "import time\ntime.sleep(0.3)\nimport user_module\nDONE = 1\n"
    )
    (tmp_path / "user_module.py").write_text(
        textwrap.dedent(
            """
            import time
            time.sleep(0.3)
            from pathlib import Path
            from kernels_hub.repository.digest import list_files
            from kernels_hub.repository.load import KernelFiles, import_kernel
            folder = Path(__file__).parent / "kernel"
            kernel = KernelFiles("cycle", "torch-cpu", (folder,), list_files(folder))
            import_kernel(kernel)
            """
        )
    )
    script = textwrap.dedent(
        f"""
        import sys, threading, importlib
        sys.path.insert(0, {str(tmp_path)!r})
        from pathlib import Path
        from kernels_hub.repository.digest import list_files
        from kernels_hub.repository.load import KernelFiles, get_loaded_kernels, import_kernel
        folder = Path({str(tmp_path)!r}) / "kernel"
        kernel = KernelFiles("cycle", "torch-cpu", (folder,), list_files(folder))
        threads = [
            threading.Thread(target=import_kernel, args=(kernel,)),
            threading.Thread(target=importlib.import_module, args=("user_module",)),
        ]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        (loaded,) = get_loaded_kernels()
        print(loaded.module.DONE)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr
    assert not done.stderr


def test_the_second_import_costs_next_to_nothing(kernel) -> None:
    """A look into a table: no file is touched, and a handful of functions is called."""
    files = kernel({"__init__.py": "", **{f"part{i}.py": "x = 1\n" * 1000 for i in range(20)}})
    import_kernel(files)
    called: list[str] = []
    sys.setprofile(lambda frame, event, of: called.append(f"{event} {of or frame.f_code.co_qualname}"))
    try:
        import_kernel(files)
    finally:
        sys.setprofile(None)
    calls = [one for one in called if "return" not in one]
    assert 0 < len(calls) <= 20, calls
    assert not any(word in one for one in calls for word in ("stat", "open", "listdir", "scandir", "hash"))
