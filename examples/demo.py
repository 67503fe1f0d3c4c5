"""The demo: counts the words of Python's own library while its processes are killed.

`make demo` runs it. A job service is started (`penstock jobmanager`), the program
`examples/word_count.py` is handed to it (`penstock submit`) with two workers and a snapshot every
200 ms. In mid-stream one worker gets SIGKILL, then the job's JobManager, and then the service
itself. The job goes on by itself. Its output is compared with a plain `collections.Counter` of the
same text. A line is written for each word with its running count, so the counts of a word must be
1, 2, 3 … n, each once: a record that is lost or doubled anywhere shows.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
#: The text is repeated up to so many characters, so that there is a mid-stream to kill in. If the
#: job ends before its processes are killed, the demo starts again with twice as many.
CORPUS_SIZE = 32_000_000
#: Number of files that the text is spread over.
FILES = 8
#: Snapshots that a run must have completed before something is killed in it.
SNAPSHOTS = 5
#: After this time without a next step, the demo says what it waits for. It goes on waiting.
REMARK_SECONDS = 60

console = Console(highlight=False)


class EndedEarly(Exception):
    """The job ended before all its processes were killed."""


def write_corpus(folder: Path, size: int) -> Counter[str]:
    """Write so many characters of the standard library into a few files.

    Returns the number of each word.
    """
    library = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted([*library.rglob("*.py"), *library.rglob("*.txt")]):
        if "site-packages" not in path.parts:
            # Some of the library's test files are not valid text on purpose.
            texts.append(path.read_bytes().decode("utf-8", errors="replace"))
    if not texts:
        sys.exit(f"found no texts in {library}")
    sizes = itertools.accumulate(map(len, itertools.cycle(texts)))
    needed = sum(1 for _ in itertools.takewhile(lambda so_far: so_far < size, sizes))
    texts = list(itertools.islice(itertools.cycle(texts), needed))
    words: Counter[str] = Counter()
    folder.mkdir(parents=True)
    for number in range(FILES):
        text = "\n".join(texts[number::FILES])
        words.update(text.split())
        (folder / f"{number}.txt").write_text(text, encoding="utf-8", newline="")
    return words


class Service:
    """A running `penstock jobmanager`, and the commands that talk to it.

    Arguments:
        folder: everything is kept below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = str(folder / "service")
        self._start()

    def _start(self) -> None:
        with (self._folder / "service.log").open("a") as log:
            command = [PENSTOCK, "jobmanager", "--dir", self._state]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill_and_start(self) -> None:
        """Kill the service with SIGKILL, and start another one."""
        self._process.kill()
        self._process.wait()
        self._start()
        self.wait_until_up()

    def submit(self) -> str:
        """Submit the word count; returns the job's id."""
        command = [PENSTOCK, "submit", str(HERE / "word_count.py"), "--dir", self._state]
        command += ["--checkpoint-dir", str(self._folder / "job"), "--checkpoint-interval", "200ms"]
        command += ["--parallelism", "2", "--detach"]
        command += ["--", str(self._folder / "corpus"), str(self._folder / "output")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.split()[-1]

    def jobs(self) -> list[dict[str, Any]] | None:
        """All jobs as `penstock list` tells them, or None if the service does not answer."""
        command = [PENSTOCK, "list", "--json", "--dir", self._state]
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_for(
        self, job: str, what: str, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait until a job fulfils a condition; returns how it stands then."""
        began = remarked = time.monotonic()
        while self._process.poll() is None:
            for record in self.jobs() or ():
                if record["id"] == job and condition(record):
                    return record
            now = time.monotonic()
            if now > remarked + REMARK_SECONDS:
                remarked = now
                console.print(f"waiting for {what} since {now - began:.0f} s")
            threading.Event().wait(0.1)
        raise SystemExit((self._folder / "service.log").read_text())

    def wait_until_up(self) -> None:
        """Wait until the service answers."""
        while self.jobs() is None:
            if self._process.poll() is not None:
                raise SystemExit((self._folder / "service.log").read_text())
            threading.Event().wait(0.1)

    def stop(self) -> None:
        """Stop the service and all its jobs, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


def kill(pid: int) -> None:
    """Send SIGKILL to a process of the job."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        raise EndedEarly from None


def run_and_kill(service: Service) -> int:
    """Run the job while a worker, the JobManager and the service are killed.

    Returns the number of kills.
    """
    job = service.submit()
    record = service.wait_for(
        job, f"{SNAPSHOTS} snapshots", lambda r: _running(r) and r["last_snapshot"] >= SNAPSHOTS
    )
    victim = record["worker_pids"][0]
    kill(victim)
    console.print(f"snapshot {record['last_snapshot']}: killed worker {victim} with SIGKILL")
    before = record["last_snapshot"]
    record = service.wait_for(
        job,
        "a restart and a new snapshot",
        lambda r: _running(r) and r["restarts"] >= 1 and r["last_snapshot"] > before,
    )
    # Numbers are reserved in blocks, so they jump at a restart and are counted on from here.
    record = _snapshots_later(service, job, record)
    jobmanager = record["pid"]
    kill(jobmanager)
    console.print(
        f"snapshot {record['last_snapshot']}: killed JobManager {jobmanager} with SIGKILL"
    )
    record = service.wait_for(
        job, "another JobManager", lambda r: _running(r) and r["pid"] != jobmanager
    )
    record = _snapshots_later(service, job, record)
    service.kill_and_start()
    console.print(f"snapshot {record['last_snapshot']}: killed the service, and started another")
    after = service.wait_for(job, "the job", lambda r: r["state"] != "queued")
    if after["state"] == "running" and after["pid"] != record["pid"]:
        raise SystemExit("the job did not outlive the service")
    record = service.wait_for(job, "the end of its input", lambda r: r["state"] != "running")
    if record["state"] != "finished":
        raise SystemExit(f"the job is {record['state']}: {record['error']}")
    return 3


def _snapshots_later(service: Service, job: str, record: dict[str, Any]) -> dict[str, Any]:
    """Wait for some more snapshots."""
    wanted = record["last_snapshot"] + SNAPSHOTS
    return service.wait_for(
        job, f"{SNAPSHOTS} snapshots more", lambda r: _running(r) and r["last_snapshot"] >= wanted
    )


def _running(record: dict[str, Any]) -> bool:
    if record["state"] == "finished":
        raise EndedEarly
    if record["state"] != "running":
        raise SystemExit(f"the job is {record['state']} before it was killed: {record['error']}")
    return record["last_snapshot"] is not None and bool(record["worker_pids"])


def lost_and_doubled(output: Path, words: Counter[str]) -> tuple[int, int]:
    """How many running counts are missing in the output, and how many it has too often."""
    seen = {word: bytearray(count) for word, count in words.items()}
    doubled = 0
    for path in output.glob("part-*"):
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                word, _, count = line.rstrip("\n").rpartition(" ")
                counts, index = seen.get(word, b""), int(count) - 1
                if index < len(counts) and not counts[index]:
                    counts[index] = 1
                else:
                    doubled += 1
    return sum(counts.count(0) for counts in seen.values()), doubled


def main() -> int:
    """Run the demo; returns the exit code."""
    began = time.monotonic()
    folder = HERE.parent / "demo-output"
    size, kills = CORPUS_SIZE, 0
    while not kills:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        words = write_corpus(folder / "corpus", size)
        total = words.total()
        console.print(f"corpus: {total:,} words, {len(words):,} different, of Python's library")
        service = Service(folder)
        try:
            service.wait_until_up()
            kills = run_and_kill(service)
        except EndedEarly:
            size *= 2
            console.print("the job was done before it was killed: again with twice as many words")
        finally:
            service.stop()
    lost, doubled = lost_and_doubled(folder / "output", words)
    console.print(f"{time.monotonic() - began:.0f} s; the output is in {folder / 'output'}")
    console.print(f"words {total} · lost {lost} · doubled {doubled} · kills {kills}")
    return 0 if lost == doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
