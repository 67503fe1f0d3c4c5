"""The committables of a manifest: which are pending, and in which order."""

from __future__ import annotations

from dataclasses import replace

from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.committables import needed_numbers, pending_committables
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)


def manifest(number: int, *operators: OperatorEntry) -> Manifest:
    kind = SnapshotKind.CHECKPOINT
    return Manifest(
        "words", "old", None, SnapshotNumber(number), kind, 0, 1, "0.1.0", "f", operators
    )


def staged(snapshot: int, uid: str, subtask: int, payload: object = None) -> Committable:
    return Committable("old", uid, subtask, snapshot, 1, payload)


def test_committables_are_pending_in_order_of_snapshot_uid_and_subtask() -> None:
    items = (staged(11, "b", 0), staged(2, "b", 1), staged(11, "a", 10), staged(11, "a", 9))
    before = replace(manifest(11), committables=items)
    order = [(item.snapshot, item.uid, item.subtask) for item in pending_committables(before)]
    assert order == [(2, "b", 1), (11, "a", 9), (11, "a", 10), (11, "b", 0)]
    assert needed_numbers(items) == {2, 11}


def test_a_committable_that_came_twice_is_committed_once() -> None:
    twice = (staged(1, "a", 0, payload={"f": 1}), staged(1, "a", 0, payload={"f": 1}))
    assert pending_committables(replace(manifest(1), committables=twice)) == [twice[0]]


def test_two_payloads_of_one_writer_are_both_committed_in_their_order() -> None:
    both = (staged(1, "a", 0, payload=["z", 1]), staged(1, "a", 0, payload=["z", True]))
    assert pending_committables(replace(manifest(1), committables=both)) == list(both)
