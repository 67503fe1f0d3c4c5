"""The demo of operating a job: it is looked at, rescaled, upgraded and killed, and stays right.

`make demo-operate` runs it. A service takes the job `examples/clicks.py`. Savepoint, rescaling from
2 to 4 and to 1, new versions of the program, and a version that fails and is taken back; then the
service and the JobManager get SIGKILL. Shadow runs compare versions while the job goes on. The
output has a line for each click with its number, so the numbers of a user must be 1, 2, 3 … n, each
once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
FOLDER = HERE.parent / "demo-operate-output"
PROGRAM, OUTPUT = str(HERE / "clicks.py"), str(FOLDER / "output")

console = Console(highlight=False)


def penstock(*words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Show a command of `penstock`, run it, and return its outcome.

    Arguments:
        words: the command and its arguments.
        fails: whether the exit code must be 1 instead of 0.
    """
    shown = " ".join(words).replace(str(FOLDER), "…").replace(str(HERE), "examples")
    began = time.monotonic()
    done = subprocess.run([PENSTOCK, *words], capture_output=True, text=True)
    console.print(f"$ penstock {shown}   [dim]({time.monotonic() - began:.1f} s)[/dim]")
    if done.returncode != int(fails):
        raise SystemExit(done.stdout + done.stderr)
    return done


class Service:
    """The service of the demo, with one job."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the service, and wait until it answers."""
        with (FOLDER / "service.log").open("a") as log:
            self._process = subprocess.Popen([PENSTOCK, "jobmanager"], stdout=log, stderr=log)
        while self.job() is None:
            if self._process.poll() is not None:
                raise SystemExit((FOLDER / "service.log").read_text())
            threading.Event().wait(0.1)

    def kill(self) -> None:
        """Kill the service with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the service and its job."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    @staticmethod
    def job() -> dict[str, Any] | None:
        """Return the record of the job, an empty one before it is submitted; None if unanswered."""
        done = subprocess.run([PENSTOCK, "list", "--json"], capture_output=True, text=True)
        jobs = json.loads(done.stdout) if done.returncode == 0 else None
        return None if jobs is None else (jobs or [{}])[0]

    def wait_for(self, what: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the job fulfils a condition, and return its record."""
        while True:
            record = self.job()
            if record and record["state"] not in ("queued", "running"):
                raise SystemExit(f"waiting for {what}: the job is {record['state']}")
            if record and condition(record):
                return record
            threading.Event().wait(0.1)

    def snapshots(self) -> dict[str, Any]:
        """Wait for some more snapshots of the job, and return its record."""
        newest = self.wait_for("a snapshot", lambda r: r["last_snapshot"])["last_snapshot"]
        return self.wait_for("snapshots", lambda r: r["last_snapshot"] >= newest + 3)


def operate(service: Service) -> None:
    """Do with the job what its owner does in some months."""
    penstock(
        "submit",
        PROGRAM,
        "--checkpoint-dir",
        str(FOLDER / "job"),
        "-p",
        "2",
        "--detach",
        "--",
        OUTPUT,
    )
    service.snapshots()
    console.print(penstock("show", "1").stdout.rstrip())
    penstock("savepoint", "1")
    penstock("rescale", "1", "-p", "4")
    service.snapshots()
    penstock("rescale", "1", "-p", "1")
    service.snapshots()
    console.print(
        penstock("snapshots", "query", "1", "numbers", "clicks", "--top", "3").stdout.rstrip()
    )
    console.print(penstock("snapshots", "check", PROGRAM, "1", "--", OUTPUT, "2").stdout.rstrip())
    shadow = ("upgrade", "1", PROGRAM, "--shadow", "--snapshots", "3")
    differs = penstock(*shadow, "--", OUTPUT, "2", fails=True)
    console.print(differs.stdout.rstrip())
    console.print(penstock(*shadow, "--promote", "--", OUTPUT, "1.1").stdout.rstrip())
    service.snapshots()
    penstock("upgrade", "1", PROGRAM, "-p", "2", "--", OUTPUT, "2")
    service.snapshots()
    failed = penstock("upgrade", "1", PROGRAM, "--", OUTPUT, "broken", fails=True)
    console.print(failed.stderr.strip().splitlines()[-1])
    before = service.snapshots()
    service.kill()
    console.print("killed the service with SIGKILL")
    service.start()
    after = service.snapshots()
    if any(before[name] != after[name] for name in ("pid", "worker_pids", "restarts")):
        raise SystemExit("the job was restarted although only the service was killed")
    os.kill(after["pid"], signal.SIGKILL)
    console.print("killed the JobManager with SIGKILL")
    service.wait_for("another JobManager", lambda r: r["pid"] != after["pid"])
    service.snapshots()
    penstock("stop", "1", "--savepoint")


def lost_and_doubled() -> tuple[int, int, int]:
    """Return the number of clicks in the output, of missing ones, and of those that are doubled."""
    seen: dict[str, list[int]] = defaultdict(list)
    versions = set()
    for path in Path(OUTPUT).glob("part-*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            user, number, version = line.split()
            seen[user].append(int(number))
            versions.add(version)
    if versions != {"1", "2"}:
        raise SystemExit(f"the output is of the versions {versions}")
    total = sum(map(len, seen.values()))
    lost = sum(max(numbers) - len(set(numbers)) for numbers in seen.values())
    return total, lost, total - sum(len(set(numbers)) for numbers in seen.values())


def main() -> int:
    """Run the demo, and return the exit code."""
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.environ["PENSTOCK_HOME"] = str(FOLDER / "service")
    service = Service()
    try:
        operate(service)
    finally:
        service.stop()
    total, lost, doubled = lost_and_doubled()
    console.print(f"{time.monotonic() - began:.0f} s")
    console.print(f"clicks {total} · lost {lost} · doubled {doubled}")
    return 0 if lost == doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
