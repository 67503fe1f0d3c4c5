"""Publishers to Redis and NATS that fall asleep or die at any step, and wake up behind a successor.

    python -m tests.connectors.zombies KIND URL STREAM SNAPSHOTS STEP HOW

A publisher does what the JobManager does: it fences, reads the marker, and publishes all snapshots
behind it. At step number STEP it kills or stops itself; a stopped one goes on when it gets SIGCONT,
as a machine that has slept. Snapshot n has the records from n * RECORDS on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from penstock.connectors.nats import NatsStreamSink
from penstock.connectors.nats.publisher import Publisher
from penstock.connectors.redis import RedisStreamSink
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from tests.connectors.nats.streams import Streams
from tests.processes.harness import gone, wait_until

RECORDS = 6
#: Steps of a publisher: more than one needs for two snapshots.
STEPS = {"redis": 20, "nats": 50}


def publish(kind: str, url: str, stream: str, snapshots: int, at: int, how: str) -> None:
    """Publish all snapshots that the stream does not have yet."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    sink: Any = (
        RedisStreamSink(stream, url, encode=lambda n: {"n": n}, script_records=2)
        if kind == "redis"
        else NatsStreamSink(stream, f"{stream}.a", url)
    )
    _watch(Publisher, ("publish", "confirmed"), step)
    encode = sink.create_encoder(WriterContext("sink", "Sink", 0, 1, 1, "lineage"))
    target = sink.connect(SinkPlace("lineage", "sink", "Sink"))
    step()
    marker = target.fence()
    step()
    if kind == "redis":
        run = target._client.eval

        def watched(*arguments: Any) -> Any:
            step()
            answer = run(*arguments)
            step()
            return answer

        target._client.eval = watched
    for number in range(0 if marker is None else marker.number + 1, snapshots):
        first = number * RECORDS
        target.publish(Marker(number, "d"), iter([encode(list(range(first, first + RECORDS)))]))
    step()
    target.close()


def _watch(owner: Any, names: tuple[str, ...], step: Any) -> None:
    def wrap(method: Any) -> Any:
        async def watched(self: Any, *arguments: Any) -> Any:
            step()
            answer = await method(self, *arguments)
            step()
            return answer

        return watched

    for name in names:
        setattr(owner, name, wrap(getattr(owner, name)))


def haunt(kind: str, url: str, stream: str, zombies: int, rng: random.Random) -> tuple[int, int]:
    """Let publishers fall asleep or die, let others follow, and wake the sleeping ones.

    Returns:
        How many have slept, and how many were killed.
    """
    if kind == "nats":
        with Streams(url) as streams:
            # The ids of messages are forgotten at once, as for a publisher that has slept for long.
            streams.make(stream, duplicate_window=0.1)
    slept = killed = 0
    for turn in range(1, zombies + 1):
        how = rng.choice(["stop", "stop", "kill"])
        at = rng.randrange(1, STEPS[kind])
        command = [sys.executable, "-m", __name__, kind, url, stream]
        first = subprocess.Popen([*command, str(2 * turn), str(at), how])
        wait_until(lambda pid=first.pid: gone(pid) or _stopped(pid), "a publisher has stopped")
        stopped = _stopped(first.pid)
        # Others follow, of which the last one publishes everything.
        subprocess.run(
            [*command, str(2 * turn - 1), str(rng.randrange(1, 30)), "kill"], check=False
        )
        # A publisher that still fails because of the other one would be started again.
        for _ in range(10):
            if subprocess.run([*command, str(2 * turn), "0", "none"], check=False).returncode == 0:
                break
        else:
            raise AssertionError(f"turn {turn}: no publisher has come to its end")
        if stopped:
            os.kill(first.pid, signal.SIGCONT)
        first.wait()
        slept += stopped
        killed += first.returncode == -signal.SIGKILL
    return slept, killed


def written(kind: str, url: str, stream: str) -> list[int]:
    """Return the records that are in the stream."""
    if kind == "nats":
        with Streams(url) as streams:
            return [int(message.data) for message in streams.messages(stream)]
    with redis.Redis.from_url(url) as client:
        return [int(fields[b"n"]) for _, fields in client.xrange(stream)]


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> int:
    """Run one publisher. One that was fenced ends as a JobManager does, which is started again."""
    kind, url, stream, snapshots, at, how = sys.argv[1:]
    try:
        publish(kind, url, stream, int(snapshots), int(at), how)
    except JobError as error:
        if error.recoverability is not Recoverability.ENVIRONMENT:
            raise
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
