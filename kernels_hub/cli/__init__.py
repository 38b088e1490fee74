"""The `kernels-hub` command. One module a command; what it needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

TRACEBACK = "KERNELS_HUB_TRACEBACK"
"""Environment variable: set to 1, errors come with Python's traceback."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 an error (in one message on stderr), 2 wrong usage.

    arguments: those of the process when None.
    """
    from kernels_hub.cli.app import app
    from kernels_hub.errors import KernelsHubError

    try:
        app(None if arguments is None else list(arguments), prog_name="kernels-hub")
    except Exception as error:
        if os.environ.get(TRACEBACK, "0") not in ("", "0"):
            raise
        if isinstance(error, KernelsHubError):
            message = str(error)
        else:
            message = f"{type(error).__name__}: {error} ({TRACEBACK}=1 shows where)"
        print(f"kernels-hub: {message}", file=sys.stderr)
    sys.exit(1)
