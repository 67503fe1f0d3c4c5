"""Kill jobs that use connectors, and count lost and doubled records: `make soak-connectors`.

    python -m tests.soak.connectors                 # all of them, 100 kills each
    python -m tests.soak.connectors kafka redis     # some of them
    python -m tests.soak.connectors --kills 10

Each module beside this one whose name begins with `connectors_` is a program for one system. It
takes `--kills`, prints what it counts, and ends with exit status 1 if a record was lost or doubled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

_PREFIX = "connectors_"


def main() -> int:
    """Run the programs one after the other; return the exit status."""
    known = sorted(
        path.stem.removeprefix(_PREFIX) for path in Path(__file__).parent.glob(f"{_PREFIX}*.py")
    )
    parser = argparse.ArgumentParser(prog="python -m tests.soak.connectors")
    parser.add_argument("systems", nargs="*", help=f"of {', '.join(known)}; all if none is given")
    parser.add_argument("--kills", type=int, default=100, help="of each connector (100)")
    options = parser.parse_args()
    if unknown := set(options.systems) - set(known):
        parser.error(f"there is no connector {', '.join(sorted(unknown))}; there are {known}")
    failed = []
    for system in options.systems or known:
        print(f"== {system}", flush=True)
        began = time.monotonic()
        module = f"tests.soak.{_PREFIX}{system}"
        command = [sys.executable, "-m", module, "--kills", str(options.kills)]
        status = subprocess.run(command, check=False).returncode
        print(f"== {system}: exit status {status} after {time.monotonic() - began:.0f} s")
        if status:
            failed.append(system)
    print(f"failed: {', '.join(failed)}" if failed else "all connectors: nothing lost or doubled")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
