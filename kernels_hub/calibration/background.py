"""Background measurement of gains that a `kernelize` call lacked: a low-priority process, two seconds of two cores.

What was measured takes effect at the next `kernelize`. A process that is ended in the middle has kept what it had by
then; the next `kernelize` that misses something goes on.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import astuple

from kernels_hub.calibration.database import Machine, calibration_folder, setting
from kernels_hub.calibration.gain_table import Shape
from kernels_hub.cxx_compiler import lowered

logger = logging.getLogger(__name__)

CORE_SECONDS = 4.0
"""Two seconds of two cores; of more threads, less long."""
LEAST_S = 0.25
_NICENESS = 19
"""It takes what the model leaves: what is measured serves the next `kernelize`."""
MOST_SHAPES = 200
PAUSE_S = 60.0
"""Processes that start within this long of one another measure once."""

_STARTED = threading.Event()


def measure_beside(unknown: Iterable[Shape], machine: Machine) -> bool:
    """Start measuring classes of shape, once in a process; whether it was started.

    Not where KERNELS_HUB_CALIBRATION is set, under pytest, or where PyTorch is told to be deterministic.
    """
    import torch

    shapes = list(unknown)
    shapes = random.sample(shapes, min(len(shapes), MOST_SHAPES))  # not what the last attempt was spent on
    if not shapes or setting() or _STARTED.is_set() or _is_tested():
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    _STARTED.set()
    if _measured_just_now(machine):
        return False
    seconds = min(2.0, max(LEAST_S, CORE_SECONDS / machine.threads))
    command = [
        *lowered(_NICENESS),
        sys.executable,
        "-m",
        "kernels_hub",
        "calibrate",
        "--wanted",
        "-",
        "--quiet",
    ]
    command += ["--budget", str(seconds), "--threads", str(machine.threads)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, "KERNELS_HUB_CALIBRATION": "off"},
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps([astuple(shape) for shape in shapes]).encode())
    except OSError as error:
        logger.info("nothing is measured beside: %s", str(error)[:120])
        return False
    logger.info(
        "%d classes of shape are unknown on this processor; they keep PyTorch's own code and are measured beside",
        len(shapes),
    )
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie is left behind
    return True


def _measured_just_now(machine: Machine) -> bool:
    """Whether another process has begun to measure within a minute; else this one is noted to."""
    mark = calibration_folder() / f"{machine.file_name}.measuring"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        if mark.exists() and 0 <= time.time() - mark.stat().st_mtime < PAUSE_S:
            return True
        mark.touch()
    except OSError as error:
        logger.info("nothing is measured beside: %s", str(error)[:120])
        return True
    return False


def _is_tested() -> bool:
    return "pytest" in sys.modules
