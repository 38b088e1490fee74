"""Database of measured gains: a JSON file for each processor, thread count and versions, and tables that are shipped.

The file lies in `calibration` in the cache (KERNELS_HUB_CACHE), beside what `kernels-hub tune` keeps. It is replaced
as a whole, under a lock, so that processes that measure side by side add to one another. A file that makes no sense
is measured anew, and one line says so. KERNELS_HUB_CALIBRATION decides what is asked:

    (unset)     this machine's file, then the shipped table of its processor, or what holds on all processors that have
                one; what was not measured on this processor is tried at a model's calls, and measured beside
    off         the same, and nothing is tried or measured unless `kernels-hub calibrate` is called
    ignore      nothing: every kernel of the mapping runs, whatever it gains
    FILE.json   that file alone, as `kernels-hub calibrate --export` wrote it: the same choices everywhere
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from kernels_hub.calibration.gain_table import LEAST_GAIN, Gain, GainTable, Shape, ranges
from kernels_hub.calibration.kinds import class_of, from_memory, rows_of
from kernels_hub.calibration.processor import this_processor
from kernels_hub.errors import CalibrationError
from kernels_hub.files import cache_folder, write_atomically

logger = logging.getLogger(__name__)

FORMAT = 1
IGNORE, OFF = "ignore", "off"
THIS_MACHINE, SHIPPED, PINNED, OTHERS = "this machine", "shipped table", "pinned file", "other processors"
_VARIABLE = "KERNELS_HUB_CALIBRATION"
_MOST_BYTES = 4 << 20
_CAUTION = 0.9
"""What of the least gain on other processors counts on one that was not measured."""
_MORE_CAUTION = 0.6
"""The same where not all of the nearest processors were measured: a gain of 1.75 or more counts then."""
_WIDEST_VECTORS = {"amx": "avx512", "avx512bf16": "avx512"}
"""Instruction sets whose kernels in float32 are those of another."""


@dataclass(frozen=True)
class Machine:
    """What measurements are valid for. `versions` do not count for shipped tables."""

    processor: str
    threads: int
    versions: tuple[tuple[str, str], ...]

    @property
    def file_name(self) -> str:
        """The name of its file."""
        versions = "-".join(version for _, version in self.versions)
        return f"{self.processor}-{self.threads}-{versions}.json".replace("/", "_")


def this_machine() -> Machine:
    """This process: its processor, PyTorch's threads, the versions of PyTorch and of this library."""
    import torch

    versions = (("torch", str(torch.__version__)), ("kernels_hub", importlib.metadata.version("kernels-hub")))
    return Machine(this_processor().name, torch.get_num_threads(), versions)


def calibration_folder() -> Path:
    """Where this machine's measurements are kept."""
    return cache_folder("calibration")


def setting() -> str:
    """The value of KERNELS_HUB_CALIBRATION."""
    return os.environ.get(_VARIABLE, "")


class KnownGains:
    """What is known in this process, the nearest source first."""

    def __init__(
        self,
        tables: tuple[tuple[str, GainTable], ...],
        *,
        others: Callable[[], GainTable] | None = None,
        deterministic: bool = False,
    ) -> None:
        self.tables = tables
        self._others = others
        """What is expected where the tables know nothing: read when that is first needed."""
        self.is_empty_by_determinism = deterministic
        """Nothing is asked, for PyTorch is told to be deterministic and no file is pinned."""

    def gain(self, shape: Shape, *, reads_memory: bool = False) -> Gain | None:
        """What is known of a shape: of each class of rows, what the first source says that knows it; or None.

        It is complete where this processor was measured in all classes of rows.
        reads_memory: in a model of which no cache holds the weights; where that is known, it counts.
        """
        cell = class_of(shape)
        known = self._known(cell)
        if reads_memory and known:
            known |= self._known(from_memory(cell))
        if not known:
            return None
        ratios = {rows: ratio for rows, (ratio, _) in known.items()}
        wanted = set(rows_of(cell))
        measured_here = {rows for rows, (_, source) in known.items() if source != OTHERS}
        best, source = max(known.values(), key=lambda each: each[0])
        rows = ranges(ratios, complete=ratios.keys() >= wanted)
        return Gain(best, source, rows, measured_here >= wanted)

    def is_measured(self, cell: Shape) -> bool:
        """Whether this processor was measured in all classes of rows of a class of shape."""
        here = {rows for rows, (_, source) in self._known(cell).items() if source != OTHERS}
        return here >= set(rows_of(cell))

    def _known(self, cell: Shape) -> dict[int, tuple[float, str]]:
        """Rows -> a ratio, and the first source that has it."""
        known: dict[int, tuple[float, str]] = {}
        tables = self.tables
        if self._others is not None and not any(s == SHIPPED and cell in table.cells for s, table in tables):
            tables = (*tables, (OTHERS, self._others()))
        for source, table in reversed(tables):
            known.update({rows: (ratio, source) for rows, ratio in table.cells.get(cell, {}).items()})
        return known


def known_gains(machine: Machine) -> KnownGains:
    """The tables that hold for a machine, under KERNELS_HUB_CALIBRATION.

    Where PyTorch is told to be deterministic, a pinned file alone counts: nothing is chosen by time.
    Raises CalibrationError for a pinned file that cannot be read.
    """
    import torch

    pinned = setting()
    if pinned not in ("", OFF, IGNORE):
        try:
            return KnownGains(((PINNED, read(Path(pinned).expanduser(), None)),))
        except CalibrationError as error:
            raise CalibrationError(
                f"{_VARIABLE}: {error}; write one with kernels-hub calibrate --export FILE.json, or unset the variable"
            ) from error
    if torch.are_deterministic_algorithms_enabled():
        return KnownGains((), deterministic=True)
    own, table = load(machine), shipped(machine)
    return KnownGains(((THIS_MACHINE, own), (SHIPPED, table)), others=lambda: of_other_processors(machine))


def load(machine: Machine) -> GainTable:
    """What this machine has measured so far; empty where nothing was, or cannot be read."""
    path = calibration_folder() / machine.file_name
    try:
        status = path.stat()
    except OSError:
        return GainTable()
    return _loaded(path, status.st_mtime_ns, machine)


@lru_cache(maxsize=4)
def _loaded(path: Path, _: int, machine: Machine) -> GainTable:
    try:
        return read(path, machine)
    except CalibrationError as error:
        logger.warning("%s; it is measured anew", str(error)[:160])
        return GainTable()


@lru_cache(maxsize=4)
def shipped(machine: Machine) -> GainTable:
    """The shipped table of a machine's processor and thread count; empty where there is none."""
    path = _shipped_folder() / f"{machine.processor}-{machine.threads}.json"
    return read(path, None) if path.is_file() else GainTable()


@lru_cache(maxsize=4)
def of_other_processors(machine: Machine) -> GainTable:
    """What a machine may expect that was not measured: nine tenths of the least gain on all that were.

    These are the shipped tables of its processor, or else of its vectors and thread count, or else of its vectors; two
    at least, and where there are not two, the table is empty. Of what not all of these have, six tenths of the least
    gain in the tables of its vectors that have it, two at least, where that is a gain still. Of what a machine's own
    table has, nothing is expected.
    """
    paths = sorted(_shipped_folder().glob("*.json"))
    of_vectors = [path for path in paths if _vectors(_processor_of(path)) == _vectors(machine.processor)]
    of_processor = [path for path in of_vectors if _processor_of(path) == machine.processor]
    of_threads = [path for path in of_vectors if path.stem.endswith(f"-{machine.threads}")]
    least = GainTable()
    nearest = next((each for each in (of_processor, of_threads, of_vectors) if len(each) > 1), [])
    if not nearest:
        return least
    tables = {path: read(path, None) for path in of_vectors}
    own = shipped(machine).cells
    found: dict[tuple[Shape, int], dict[Path, float]] = {}
    for path, table in tables.items():
        for shape, rows, ratio in table.rows():
            if shape not in own:
                found.setdefault((shape, rows), {})[path] = ratio
    for (shape, rows), ratios in found.items():
        near = [ratios[path] for path in nearest if path in ratios]
        if len(near) == len(nearest):
            least.put(shape, rows, _CAUTION * min(near))
        elif len(ratios) > 1 and (expected := _MORE_CAUTION * min(ratios.values())) >= LEAST_GAIN:
            least.put(shape, rows, expected)  # what is less is unknown, and may be tried
    return least


def _processor_of(path: Path) -> str:
    """The processor of a shipped table, whose name ends with its thread count."""
    return path.stem.rpartition("-")[0]


def _vectors(processor: str) -> str:
    instruction_set = processor.rpartition("-")[2]
    return _WIDEST_VECTORS.get(instruction_set, instruction_set)


def _shipped_folder() -> Path:
    folder = importlib.util.find_spec("kernels_hub.mappings")
    assert folder is not None and folder.submodule_search_locations
    return Path(folder.submodule_search_locations[0]) / "gains"


def add(machine: Machine, measured: GainTable) -> Path | None:
    """Add measurements to this machine's file; None, with one line said, where it cannot be written."""
    from filelock import FileLock, Timeout

    path = calibration_folder() / machine.file_name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=10):
            table = GainTable()
            with suppress(CalibrationError):  # not there yet, or not to be read: `load` says so
                table.merge(read(path, machine))
            table.merge(measured)
            write(path, machine, table)
    except (OSError, Timeout) as error:
        logger.warning("what was measured is not kept: %s", str(error)[:160])
        return None
    return path


def write(path: Path, machine: Machine, table: GainTable) -> None:
    """Write a table as a file, whole or not at all."""
    gains: dict[str, dict[str, dict[str, float]]] = {}
    for shape, rows, ratio in sorted(
        table.rows(), key=lambda each: (each[0].kind, each[0].dtype, each[0].depth, each[0].columns, each[1])
    ):
        of_kind = gains.setdefault(f"{shape.kind}, {shape.dtype}", {})
        of_kind.setdefault(f"{shape.depth} x {shape.columns}", {})[str(rows)] = ratio
    document = {"format": FORMAT, "machine": {**asdict(machine), "versions": dict(machine.versions)}}
    write_atomically(path, _text(document, gains))


def _text(document: Mapping[str, object], gains: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """JSON with a line for each class of shape, so that a table is read and compared line by line."""
    head = json.dumps(document, indent=1)[:-2]
    kinds = []
    for kind, cells in gains.items():
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(ratios)}" for name, ratios in cells.items())
        kinds.append(f"  {json.dumps(kind)}: {{\n{lines}\n  }}")
    return head + ',\n "gains": {\n' + ",\n".join(kinds) + "\n }\n}\n"


def read(path: Path, machine: Machine | None) -> GainTable:
    """The table in a file. machine: for which it must have been measured, None for any.

    Raises CalibrationError where the file is missing, is not what `write` writes, or is of another machine.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CalibrationError(f"{path} has more than {_MOST_BYTES:,} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise CalibrationError(f"{path} is of format {document['format']!r}, this version reads {FORMAT}")
        if machine is not None:
            of = document["machine"]
            found = Machine(of["processor"], of["threads"], tuple(of["versions"].items()))
            if found != machine:
                raise CalibrationError(f"{path} was measured on {found.file_name}")
        table = GainTable()
        for name, cells in document["gains"].items():
            kind, _, dtype = name.rpartition(", ")
            for cell, ratios in cells.items():
                depth, columns = map(int, cell.split(" x "))
                for rows, ratio in ratios.items():
                    if not 0 < float(ratio) < 1e6 or int(rows) < 1:
                        raise CalibrationError(f"{path}: {name}, {cell}: {rows}: {ratio} is no ratio")
                    table.put(Shape(kind, dtype, depth, columns), int(rows), float(ratio))
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CalibrationError):
            raise
        raise CalibrationError(
            f"{path} is no calibration file: {type(error).__name__} {error}"[:200]
        ) from error
    return table
