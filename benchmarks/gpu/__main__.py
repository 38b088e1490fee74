"""`python -m benchmarks.gpu`: see the package."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.page import write_page
from benchmarks.gpu.run import How, run_slices
from benchmarks.gpu.slices import SLICES
from benchmarks.gpu.target import Target
from benchmarks.harness import table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where a case failed, 3 where a slice was stopped and is to be gone on with."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=gpu.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--list", action="store_true", help="print the slices, their minutes, and what each proves"
    )
    parser.add_argument(
        "--slices", type=int, nargs="+", choices=[of.number for of in SLICES], help="which; all by default"
    )
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, with tiny shapes")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name it finds")
    parser.add_argument(
        "--once",
        choices=("ours", "all"),
        default="",
        help="right numbers and no times: every way is called once; all: torch.compile's as well, whose caches a later "
        "run finds",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, with --once")
    parser.add_argument("--retry", action="store_true", help="run what failed again")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="the folder of the results")
    options = parser.parse_args(arguments)
    if options.list:
        print(
            table(
                ("slice", "minutes", "proves"),
                [(f"{of.number} {of.name}", f"{of.minutes:g}", of.proves) for of in SLICES],
            )
        )
        return 0
    try:
        re.compile(options.only)
    except re.error as error:
        parser.error(
            f"--only {options.only!r} is no regular expression: {error}; write special characters as \\( \\["
        )
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: expected one process or more")
    if options.jobs != 1 and not options.once:
        parser.error(f"--jobs {options.jobs} is for --once; what is timed runs alone")
    device = Target.of(options.rehearse).name
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out} cannot be made: {error.strerror}; name a folder of yours")
    name = "".join(c if c.isalnum() else "-" for c in device.lower())
    name += f"-{options.once}-once" if options.once else ""
    journal = Journal(options.out / f"{name}.jsonl")
    how = How(options.rehearse, options.retry, options.once, options.jobs, options.only)
    wanted = [of for of in SLICES if options.slices is None or of.number in options.slices]
    whole = run_slices(wanted, journal, how)
    page = options.out / f"{name}.html"
    write_page(journal, device, page)
    failed = sum(bool(entry.error) for of in wanted for entry in journal.of(of.number))
    print(f"{failed} cases failed; {journal.path} and {page}" + ("" if whole else "; run it again to go on"))
    return 1 if failed else 0 if whole else 3


if __name__ == "__main__":
    sys.exit(main())
