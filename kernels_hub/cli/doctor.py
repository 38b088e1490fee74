"""`kernels-hub doctor`: what this machine has, what that means for kernels, and the next step."""

from __future__ import annotations

import sys
from dataclasses import asdict

from kernels_hub.cli.output import AsJson, echo, print_json


def doctor(as_json: AsJson = False) -> None:
    """What this machine has, and what that means for kernels.

    Nothing is changed, and no network is used. Exit status 1 where something does not work.
    """
    from kernels_hub.cli.doctor_checks import Status, examine
    from kernels_hub.version import __version__

    findings = examine()
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    if as_json:
        print_json(
            {"version": __version__, "counts": counts, "findings": [asdict(finding) for finding in findings]}
        )
    else:
        echo(f"kernels-hub {__version__}")
        width = max(len(finding.check) for finding in findings)
        for one in findings:
            echo(f"{one.status:8} {one.check.ljust(width)}  {one.found}")
            indent = " " * (width + 11)
            echo(f"{indent}{one.meaning}")
            if one.next_step:
                echo(f"{indent}-> {one.next_step}")
        echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts[Status.PROBLEM]:
        sys.exit(1)
