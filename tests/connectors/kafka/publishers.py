"""Publishers of snapshots that die or fall asleep at any step, and wake up behind a successor.

    python -m tests.connectors.kafka.publishers ADDRESS TOPIC SNAPSHOTS MOST STEP HOW

A publisher does what the JobManager does: it fences, reads the marker, and publishes the snapshots
behind it. These are MOST of them at most, so that one that wakes up leaves some for the others.
Before step number STEP it kills itself or stops; a stopped one goes on when it gets SIGCONT, as a
machine that has slept. Snapshot n has the records "n-0", "n-1" and "n-2".
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.formats import SimpleStringSchema
from penstock.connectors.kafka import KafkaOffsetsInitializer, KafkaSink, KafkaSource
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.testing.connectors.source_run import SourceRun

RECORDS = 3
#: So many snapshots one publisher publishes at most, which takes more steps than `STEPS`.
MOST = 3
#: Steps of a publisher, more than one needs for its first snapshot.
STEPS = 24


class Stepping:
    """Calls the methods of a client, each behind and before a step."""

    def __init__(self, client: Any, step: Any) -> None:
        self._client, self._step = client, step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name == "poll" or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._step()
            result = found(*arguments, **named)
            self._step()
            return result

        return call

    def __len__(self) -> int:
        return len(self._client)


def publish(address: str, topic: str, snapshots: int, most: int, at: int, how: str) -> None:
    """Publish snapshots that the topic does not have yet."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == at and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == at and how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)

    sink = KafkaSink(address, topic, SimpleStringSchema())
    target: Any = sink.connect(SinkPlace("lineage", topic, "Kafka"))
    step()
    marker = target.fence()
    step()
    target._producer.client = Stepping(target._producer.client, step)
    first = 0 if marker is None else marker.number + 1
    for number in range(first, min(first + most, snapshots)):
        target.publish(Marker(number), batches(topic, number, step))
    step()


def batches(topic: str, number: int, step: Any) -> Iterator[Any]:
    """Yield the staged output of a snapshot, one record at a time."""
    for index in range(RECORDS):
        yield [[topic, [f"{number}-{index}".encode()], None, [0], None, None]]
        step()


@dataclass
class Outcome:
    """What has happened in a round, and what the topic has at its end.

    Arguments:
        kills, zombies: the number of publishers that were killed, and of those that woke up behind
            a successor.
    """

    kills: int = 0
    zombies: int = 0
    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """The number of records that the topic does not have."""
        return len(set(self.expected) - set(self.found))

    @property
    def doubled(self) -> int:
        """The number of records that are there again."""
        return len(self.found) - len(set(self.found))

    @property
    def in_order(self) -> bool:
        """Whether the records are in the order of their snapshots."""
        return self.found == self.expected


def play(address: str, topic: str, rng: random.Random, publishers: int, zombies: int) -> Outcome:
    """Start publishers one after the other, and wake the stopped ones at random later times.

    Arguments:
        address: the address of the broker.
        topic: an empty topic with one partition.
        rng: decides about everything random.
        publishers: the number of publishers.
        zombies: the number of those that stop.
    """
    snapshots = MOST * publishers
    outcome = Outcome()
    outcome.expected = [f"{n}-{i}" for n in range(snapshots) for i in range(RECORDS)]
    hows = ["stop"] * zombies + ["kill"] * (publishers - zombies)
    rng.shuffle(hows)
    asleep: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-m", __name__, address, topic, str(snapshots)]
    rest = [*command, str(snapshots), "0", "none"]
    for how in hows:
        child = subprocess.Popen([*command, str(MOST), str(rng.randrange(1, STEPS)), how])
        if rng.random() < 0.5 and asleep:
            # One wakes up while its successor works.
            threading.Event().wait(rng.uniform(0, 0.6))
            wake(asleep, rng)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            asleep.append(child)
            outcome.zombies += 1
        else:
            outcome.kills += os.WIFSIGNALED(status)
            child.returncode = os.waitstatus_to_exitcode(status)
    last = subprocess.run(rest, check=False)
    while asleep:
        wake(asleep, rng)
    # A zombie may have fenced the last one, if it had not fenced before it fell asleep.
    if last.returncode:
        subprocess.run(rest, check=True)
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(address, topic, SimpleStringSchema(), stopping_offsets=latest)
    outcome.found = SourceRun(source, 1, None, 100).run()
    return outcome


def wake(asleep: list[subprocess.Popen[bytes]], rng: random.Random) -> None:
    """Wake a stopped publisher, and wait for its end."""
    child = asleep.pop(rng.randrange(len(asleep)))
    os.kill(child.pid, signal.SIGCONT)
    child.wait()


if __name__ == "__main__":
    publish(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6])
