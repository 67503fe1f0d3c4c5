"""What a worker records for the next JobManager."""

from __future__ import annotations

import hashlib

from penstock.runtime.control import messages as m
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.taskmanager.attempt_record import AttemptRecord


def record() -> AttemptRecord:
    return AttemptRecord(WorkerSpec("memory:jm", b"token", 1, 7, 1.0))


def deploy() -> m.Deploy:
    return m.Deploy(7, 0, b"code", b"plan", ["type"], [], {}, "lineage", "/root", True)


def test_an_offer_survives_the_connection_and_names_what_the_worker_has_deployed() -> None:
    recorded = record()
    recorded.received(deploy())
    offer = recorded.offer(40, "addr")
    assert not offer.started
    recorded.received(m.Start())
    offer = recorded.offer(40, "addr")
    assert m.decode(m.encode(offer)) == offer
    assert (offer.worker, offer.attempt, offer.pid, offer.address) == (1, 7, 40, "addr")
    assert offer.code == hashlib.sha256(b"code").digest()
    assert (offer.plan, offer.types, offer.started) == (b"plan", ["type"], True)


def test_snapshots_that_are_neither_complete_nor_aborted_are_pending() -> None:
    recorded = record()
    recorded.received(m.Prepare(8, 0.5))
    recorded.received(m.Inject(8, "checkpoint"))
    recorded.received(m.Prepare(9, 0.5))
    recorded.received(m.Inject(9, "savepoint"))
    recorded.received(m.Prepare(10, 0.5))
    assert recorded.offer(0, "").pending == [[8, "checkpoint"], [9, "savepoint"], [10, ""]]
    recorded.received(m.Abort(9))
    recorded.received(m.Complete(8))
    offer = recorded.offer(0, "")
    assert (offer.completed, offer.pending) == (8, [[10, ""]])


def test_splits_are_forgotten_when_a_snapshot_that_has_them_is_complete() -> None:
    recorded = record()

    def assign(id: str, sequence: int) -> None:
        recorded.received(m.SplitAssigned(0, 1, id, None, sequence))

    assign("a", 0)
    recorded.received(m.Inject(8, "checkpoint"))
    assign("b", 2)
    recorded.received(m.Inject(9, "checkpoint"))
    assign("c", 3)
    ids = [split[2:] for split in recorded.offer(0, "").splits]
    assert ids == [["b", None, 8], ["c", None, 9]]
    recorded.received(m.Complete(8))
    assert recorded.offer(0, "").splits == [[2, 0, "b", None, 8], [3, 0, "c", None, 9]]


def test_requests_without_answer_and_ends_of_input_are_offered() -> None:
    recorded = record()
    for chain in (0, 1, 2):
        recorded.sent(m.SplitWanted(chain, 1))
    recorded.received(m.SplitAssigned(0, 1, "a", None, 0))
    recorded.received(m.NoMoreSplits(1, 1))
    recorded.sent(m.InputEnded(1, 1))
    recorded.sent(m.OutsideEnded(3, 1))
    offer = recorded.offer(0, "")
    assert (offer.wanted, offer.ended, offer.outside_ended) == ([2], [[1, 1]], [[3, 1]])
    assert not offer.loop_ends
    recorded.received(m.EndInput(0, 0))
    assert recorded.offer(0, "").loop_ends


def test_a_worker_that_has_failed_is_known_as_such() -> None:
    recorded = record()
    assert not recorded.failed
    recorded.sent(m.Failed(0, 1, {}, "recoverable"))
    assert recorded.failed
