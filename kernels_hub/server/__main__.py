"""`python -m kernels_hub.server ROOT`: a server for tests and benchmarks, with what the environment says.

KERNELS_HUB_SERVE_OPTIONS is JSON with fields of `Serve`; `limits` has fields of `Limits`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kernels_hub.server.limits import Limits
from kernels_hub.server.process import Serve, serve

if __name__ == "__main__":
    options = json.loads(os.environ.get("KERNELS_HUB_SERVE_OPTIONS", "{}"))
    limits = Limits(**options.pop("limits", {}))
    serve(
        Serve(Path(sys.argv[1]), port=options.pop("port", 0), limits=limits, **options),
        announce=lambda line: print(line, flush=True),  # noqa: T201
    )
