"""Drives a sink as a task does, and crashes it between any two steps."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from penstock.connectors.spark.sink.catalog import Catalog
from penstock.dataflow.sink import Committable, WriterContext


class Task:
    """One writer, driven as a task drives it."""

    def __init__(self, sink, uid="sink", subtask=0, attempt=1, lineage="line"):
        self.context = WriterContext(uid, uid, subtask, 2, attempt, lineage)
        self.writer = sink.create_writer(self.context)

    def write(self, batch):
        """Hand over a batch, after which none comes for a while."""
        self.writer.write(batch)
        self.writer.flush()

    def snapshot(self, number, *batches):
        for batch in batches:
            self.writer.write(batch)
        seal = self.writer.prepare(number)
        payloads = msgpack.unpackb(msgpack.packb(seal() if seal else []))
        ctx = self.context
        return [
            Committable(ctx.lineage, ctx.uid, ctx.subtask, number, ctx.attempt, payload)
            for payload in payloads
        ]


class Crash(BaseException):
    """The process is gone."""


#: What a commit does to the world, a call being a step.
STEPS = [
    (Path, "hardlink_to"),
    (Path, "unlink"),
    (Path, "replace"),
    (os, "fsync"),
    (Catalog, "require"),
    (Catalog, "add"),
    (Catalog, "drop"),
    (Catalog, "refresh"),
]


def crashed(step: int, action: Callable[[], Any]) -> tuple[bool, list[str]]:
    """Do something, but let the step of this number be the last.

    Returns:
        Whether it came to that step, and the steps done.
    """
    done: list[str] = []

    def counted(name, real):
        def call(*arguments, **options):
            result = real(*arguments, **options)
            done.append(name)
            if len(done) == step:
                raise Crash
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, counted(name, getattr(owner, name)))
        try:
            action()
        except Crash:
            return True, done
    return False, done
