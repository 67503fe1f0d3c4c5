"""How long this machine stands still by itself: no program on it is smoother than that.

On every core a loop does nothing but look at the clock for a while. What lies between two looks
beyond a millisecond is time that the core was somewhere else: with other processes, or, on a
virtual machine, with other machines. A record that meets such a pause waits for it, twice if two
processes are on its way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from bench.harness import Figures

__all__ = ["machine_pauses"]

SECONDS = 2.0
LEAST_SECONDS = 0.001


def machine_pauses(seconds: float = SECONDS) -> Figures:
    """`machine_pauses_per_second` of a core, and `machine_pause_ms_max`, the longest of all.

    Arguments:
        seconds: for how long; all cores are busy meanwhile.
    """
    command = [sys.executable, "-m", __name__, str(seconds)]
    watches = [
        subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]
    found = [json.loads(watch.communicate()[0]) for watch in watches]
    pauses = [pause for each in found for pause in each]
    return {
        "machine_pauses_per_second": round(len(pauses) / len(found) / seconds, 1),
        "machine_pause_ms_max": round(1000 * max(pauses, default=0.0), 1),
    }


def watch(seconds: float) -> list[float]:
    """The pauses of the core that this runs on, in seconds."""
    clock = time.perf_counter
    pauses = []
    last = clock()
    end = last + seconds
    while last < end:
        now = clock()
        if now - last >= LEAST_SECONDS:
            pauses.append(now - last)
        last = now
    return pauses


if __name__ == "__main__":
    print(json.dumps(watch(float(sys.argv[1]))))
