"""How the benchmarks measure: median times, the peak of memory in a process of its own, what a whole process takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


def seconds(run: Callable[[], object], budget: float = 1.5) -> float:
    """Median time of as many runs as fit into the budget, after one to warm up."""
    return alternately([run], budget)[0]


def alternately(runs: Sequence[Callable[[], object]], budget: float = 1.5) -> list[float]:
    """The same of several sides, which take turns, so that what else the machine does meets all of them."""
    began = time.perf_counter()
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    while not times[0] or (time.perf_counter() - began < budget * len(runs) and len(times[0]) < 100):
        for run, of_run in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            of_run.append(time.perf_counter() - start)
    return [statistics.median(of_run) for of_run in times]


def extra_bytes(run: Callable[[], object]) -> int:
    """How far the memory of this process rises above what it is now; Linux only."""

    def kib(key: str) -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(key))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    before = kib("VmRSS")
    run()
    return (kib("VmHWM") - before) * 1024


def printed_by(script: str, *args: str) -> str | None:
    """What a script prints in a process of its own; None where that needs more memory than there is."""
    done = subprocess.run([sys.executable, script, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return None
    return done.stdout.strip()


class Usage(NamedTuple):
    """What a process took."""

    seconds: float
    cpu: float
    megabytes: float


def process(code: str, *args: str | Path) -> tuple[str, Usage]:
    """What Python code prints in a process of its own, and what that took."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    took = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"A process failed with status {child.returncode}.")
    unit = 1 if sys.platform == "darwin" else 1024
    return out.strip(), Usage(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6)
