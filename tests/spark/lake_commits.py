"""Commits to Delta and Iceberg tables that are cut off, or that others come between."""

import os
from pathlib import Path

from penstock.connectors.lake.table_log import NewFile, SinkSnapshot
from tests.spark import sink_tasks
from tests.spark.sink_tasks import Task, crashed


def keyed(mode):
    """The options of a sink of this mode for a table with the columns a and p."""
    return {"mode": mode, "keys": ["a"] if mode == "upsert" else ()}


def crash_after_each_step(monkeypatch, mode, transactions, table):
    """Let the commits of two snapshots end after their first step, their second, and so on.

    Arguments:
        transactions: the steps of the table format itself, as (owner, name).
        table: makes the table of a step, with the rows (0, "x") and (1, "x"); returns a sink of
            this mode for it, and what reads its rows.

    Returns:
        The steps of commits that came to their end.
    """
    # Syncing is left out: it changes nothing that a next process sees.
    files = [(owner, name) for owner, name in sink_tasks.STEPS if owner is Path]
    monkeypatch.setattr(sink_tasks, "STEPS", [*files, (os, "utime"), *transactions])
    new = [(1, "x"), (2, "y"), (3, "x")]
    kept = {"append": [(0, "x"), (1, "x")], "overwrite": [], "upsert": [(0, "x")]}[mode]
    for step in range(1, 100):
        sink, rows = table(step)
        one = Task(sink).snapshot(1, [(1, "x"), (2, "y")])
        two = Task(sink, subtask=1).snapshot(2, [(3, "x")])

        def commits(sink=sink, one=one, two=two):
            committer = sink.create_committer()
            committer.commit(one)
            committer.commit([*one, *two])
            committer.finish("line", "sink")

        reached, done = crashed(step, commits)
        if reached and step % 2:
            crashed(step, commits)
        commits()
        assert rows() == sorted([*kept, *new]), f"crashed after step {step}"
        if not reached:
            return done
    raise AssertionError("more than a hundred steps")


def interleaved(monkeypatch, log, name, action):
    """Let something happen between the reading of the table and the first transaction."""
    real = getattr(log, name)
    waiting = [action]

    def call(self, *arguments):
        if waiting:
            waiting.pop()()
        return real(self, *arguments)

    monkeypatch.setattr(log, name, call)


def commit_two_beside_another(monkeypatch, log, sink):
    """Commit two snapshots, (1, "x") and (2, "y"), while another committer publishes the first."""
    task = Task(sink)
    committables = [*task.snapshot(1, [(1, "x")]), *task.snapshot(2, [(2, "y")])]
    committer = sink.create_committer()

    def other():
        first = committables[0]

        def files(since):
            committer.link([first])
            return [NewFile(committer.files.target(first), first.payload["folder"])]

        entry = SinkSnapshot("line", "sink", 1)
        sink.create_committer()._log.append(entry, [first.payload["table"]], files)

    interleaved(monkeypatch, log, "_append", other)
    committer.commit(committables)
