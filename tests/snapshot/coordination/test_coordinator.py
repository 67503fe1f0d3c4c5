"""The snapshot coordinator: events in, commands out, on a clock that the test advances."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.coordination.coordinator import (
    AbortSnapshot,
    Acknowledged,
    CheckpointRequested,
    CompleteSnapshot,
    Coordinator,
    CoordinatorCommand,
    CoordinatorEvent,
    CoordinatorState,
    Declined,
    FailAttempt,
    FinishJob,
    HoldSavepoint,
    InjectBarriers,
    NumbersReserved,
    PrepareSnapshot,
    Published,
    PublishFailed,
    PublishSnapshot,
    ReserveNumbers,
    SavepointRequested,
    StopRequested,
    TaskInputEnded,
    TasksLost,
    TasksReturned,
    Tick,
)
from penstock.snapshot.protocols.events import SnapshotKind
from tests.sizes import sized

TASKS = ("s", "t")


def coordinator(**changes: Any) -> Coordinator:
    values: dict[str, Any] = {
        "now": 0.0,
        "interval": 10.0,
        "timeout": 60.0,
        "numbers": range(1, 100),
    }
    return Coordinator(TASKS, **{**values, **changes})


def handle(target: Coordinator, *events: CoordinatorEvent) -> list[CoordinatorCommand]:
    return [command for event in events for command in target.handle(event)]


def acknowledge(number: int) -> list[CoordinatorEvent]:
    return [Acknowledged(task, number) for task in TASKS]


def test_nothing_happens_before_the_interval_is_over() -> None:
    c = coordinator()
    assert c.next_tick() == 10.0
    assert handle(c, Tick(9.999)) == []
    assert handle(c, Tick(10.0)) == [InjectBarriers(1, SnapshotKind.CHECKPOINT)]


def test_a_snapshot_goes_from_injected_to_published_to_complete() -> None:
    c = coordinator()
    handle(c, Tick(10.0))
    assert handle(c, Acknowledged("s", 1)) == []
    assert handle(c, Acknowledged("t", 1)) == [PublishSnapshot(1)]
    assert c.state is CoordinatorState.PUBLISHING
    assert c.next_tick() is None
    assert handle(c, Published(1)) == [CompleteSnapshot(1)]
    assert c.state is CoordinatorState.WAITING


def test_the_interval_counts_from_start_to_start() -> None:
    c = coordinator()
    handle(c, Tick(10.0), Tick(14.0), *acknowledge(1), Published(1))
    assert c.next_tick() == 20.0
    assert handle(c, Tick(20.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_slow_snapshot_is_followed_after_the_minimum_pause() -> None:
    c = coordinator(min_pause=3.0)
    handle(c, Tick(10.0), Tick(25.0), *acknowledge(1), Published(1))
    assert c.next_tick() == 28.0
    assert handle(c, Tick(27.9)) == []
    assert handle(c, Tick(28.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_snapshot_is_announced_once_before_it_is_due() -> None:
    c = coordinator(interval=1.0, announce=True)
    assert c.next_tick() == pytest.approx(0.75)
    assert handle(c, Tick(0.7)) == []
    (announced,) = handle(c, Tick(0.9))
    assert isinstance(announced, PrepareSnapshot)
    assert announced.number == 1
    assert announced.seconds == pytest.approx(0.1)
    assert c.next_tick() == 1.0
    assert handle(c, Tick(0.95)) == []
    assert handle(c, Tick(1.0)) == [InjectBarriers(1, SnapshotKind.CHECKPOINT)]
    handle(c, *acknowledge(1), Published(1))
    assert c.next_tick() == pytest.approx(1.75)
    assert handle(c, Tick(1.9)) == [PrepareSnapshot(2, pytest.approx(0.1))]


def test_a_short_interval_is_announced_a_quarter_of_it_ahead() -> None:
    c = coordinator(interval=0.1, announce=True)
    assert handle(c, Tick(0.07)) == []
    assert handle(c, Tick(0.08)) == [PrepareSnapshot(1, pytest.approx(0.02))]


def test_a_snapshot_that_was_announced_may_be_begun_for_another_reason() -> None:
    c = coordinator(interval=1.0, announce=True)
    assert handle(c, Tick(0.9)) == [PrepareSnapshot(1, pytest.approx(0.1))]
    assert handle(c, SavepointRequested()) == [InjectBarriers(1, SnapshotKind.SAVEPOINT)]
    handle(c, *acknowledge(1), *acknowledge(2), Published(2))
    # The interval counts from the start of the checkpoint behind it.
    assert handle(c, Tick(1.8)) == [PrepareSnapshot(3, pytest.approx(0.1))]


def test_what_is_not_due_by_the_clock_or_soon_is_not_announced() -> None:
    for changes in (
        {"interval": None, "announce": True},
        {"interval": 1.0},
        {"interval": 1.0, "announce": True, "numbers": range(0)},
    ):
        assert handle(coordinator(**changes), Tick(0.09)) == []
        assert handle(coordinator(**changes), Tick(0.9))[:1] in (
            [],
            [InjectBarriers(1, SnapshotKind.CHECKPOINT)],
        )


def test_only_one_snapshot_is_in_flight() -> None:
    c = coordinator()
    handle(c, Tick(10.0))
    assert handle(c, Tick(30.0), SavepointRequested(), StopRequested()) == []


def test_without_an_interval_only_the_last_one_is_taken() -> None:
    c = coordinator(interval=None)
    assert c.next_tick() is None
    assert handle(c, Tick(1e6)) == []
    handle(c, TaskInputEnded("s"))
    assert handle(c, TaskInputEnded("t")) == [InjectBarriers(1, SnapshotKind.FINAL)]


def test_a_snapshot_that_takes_too_long_is_given_up() -> None:
    c = coordinator(timeout=5.0, tolerable_failures=1)
    handle(c, Tick(10.0), Acknowledged("s", 1))
    assert c.next_tick() == 15.0
    assert handle(c, Tick(14.9)) == []
    (abort,) = handle(c, Tick(15.0))
    assert isinstance(abort, AbortSnapshot)
    assert "no acknowledgement from t" in abort.reason
    assert handle(c, Acknowledged("t", 1)) == []


def test_publishing_does_not_time_out() -> None:
    c = coordinator(timeout=5.0)
    handle(c, Tick(10.0), *acknowledge(1))
    assert handle(c, Tick(1000.0)) == []
    assert handle(c, Published(1))[0] == CompleteSnapshot(1)


def test_a_declined_snapshot_is_given_up_and_names_the_task() -> None:
    c = coordinator(tolerable_failures=1)
    handle(c, Tick(10.0))
    assert handle(c, Declined("t", 1, "disk full")) == [AbortSnapshot(1, "t: disk full")]
    assert handle(c, Declined("s", 1, "disk full")) == []
    assert handle(c, Tick(20.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_manifest_that_cannot_be_written_gives_the_snapshot_up() -> None:
    c = coordinator(tolerable_failures=1)
    handle(c, Tick(10.0), *acknowledge(1))
    assert handle(c, PublishFailed(1, "disk full")) == [AbortSnapshot(1, "disk full")]


def test_more_failures_in_a_row_than_are_tolerated_fail_the_attempt() -> None:
    c = coordinator(tolerable_failures=2)
    for number in (1, 2):
        handle(c, Tick(number * 10.0))
        assert len(handle(c, Declined("s", number, "no"))) == 1
    handle(c, Tick(30.0))
    assert handle(c, Declined("s", 3, "no")) == [
        AbortSnapshot(3, "s: no"),
        FailAttempt("snapshot 3 failed: s: no"),
    ]


def test_a_complete_snapshot_resets_the_count_of_failures() -> None:
    c = coordinator(tolerable_failures=1)
    handle(c, Tick(10.0), Declined("s", 1, "no"), Tick(20.0), *acknowledge(2), Published(2))
    handle(c, Tick(30.0))
    assert handle(c, Declined("s", 3, "no")) == [AbortSnapshot(3, "s: no")]


def test_when_all_input_has_ended_one_last_snapshot_is_taken_and_the_job_finishes() -> None:
    c = coordinator()
    assert handle(c, TaskInputEnded("s")) == []
    assert handle(c, TaskInputEnded("t")) == [InjectBarriers(1, SnapshotKind.FINAL)]
    assert handle(c, *acknowledge(1)) == [PublishSnapshot(1)]
    assert handle(c, Published(1)) == [FinishJob(1)]
    assert handle(c, Tick(1e6), StopRequested(), SavepointRequested()) == []


def test_a_snapshot_begun_before_the_last_input_ended_is_not_the_last_one() -> None:
    c = coordinator()
    handle(c, Tick(10.0), TaskInputEnded("s"), TaskInputEnded("t"), *acknowledge(1))
    assert handle(c, Published(1)) == [CompleteSnapshot(1), InjectBarriers(2, SnapshotKind.FINAL)]
    handle(c, *acknowledge(2))
    assert handle(c, Published(2)) == [FinishJob(2)]


def test_a_last_snapshot_that_fails_is_taken_again_at_once() -> None:
    c = coordinator(tolerable_failures=1)
    handle(c, TaskInputEnded("s"), TaskInputEnded("t"))
    assert handle(c, Declined("s", 1, "no")) == [
        AbortSnapshot(1, "s: no"),
        InjectBarriers(2, SnapshotKind.FINAL),
    ]


def test_an_ended_task_still_has_to_acknowledge() -> None:
    c = coordinator()
    handle(c, TaskInputEnded("t"), Tick(10.0))
    assert handle(c, Acknowledged("s", 1)) == []
    assert handle(c, Acknowledged("t", 1)) == [PublishSnapshot(1)]


def test_a_stop_takes_a_last_snapshot_at_once() -> None:
    c = coordinator()
    assert handle(c, StopRequested()) == [InjectBarriers(1, SnapshotKind.FINAL)]
    handle(c, *acknowledge(1))
    assert handle(c, Published(1)) == [FinishJob(1)]


def test_a_stop_waits_for_the_snapshot_in_flight() -> None:
    c = coordinator()
    handle(c, Tick(10.0))
    assert handle(c, StopRequested()) == []
    handle(c, *acknowledge(1))
    assert handle(c, Published(1)) == [CompleteSnapshot(1), InjectBarriers(2, SnapshotKind.FINAL)]


def test_a_savepoint_is_held_until_the_checkpoint_after_it_is_complete() -> None:
    c = coordinator()
    assert handle(c, SavepointRequested()) == [InjectBarriers(1, SnapshotKind.SAVEPOINT)]
    assert handle(c, *acknowledge(1)) == [
        HoldSavepoint(1),
        InjectBarriers(2, SnapshotKind.CHECKPOINT),
    ]
    assert handle(c, *acknowledge(2)) == [PublishSnapshot(2)]
    assert handle(c, Published(2)) == [CompleteSnapshot(2, savepoints=(1,))]
    assert handle(c, Tick(10.0), *acknowledge(3), Published(3))[-1] == CompleteSnapshot(3)


def test_each_request_gets_its_own_savepoint_and_one_checkpoint_covers_them() -> None:
    c = coordinator(interval=None)
    handle(c, SavepointRequested(), SavepointRequested())
    assert handle(c, *acknowledge(1)) == [
        HoldSavepoint(1),
        InjectBarriers(2, SnapshotKind.SAVEPOINT),
    ]
    assert handle(c, *acknowledge(2)) == [
        HoldSavepoint(2),
        InjectBarriers(3, SnapshotKind.CHECKPOINT),
    ]
    handle(c, *acknowledge(3))
    assert handle(c, Published(3)) == [CompleteSnapshot(3, savepoints=(1, 2))]
    assert c.next_tick() is None


def test_a_held_savepoint_waits_if_the_checkpoint_after_it_is_aborted() -> None:
    c = coordinator(tolerable_failures=1)
    handle(c, SavepointRequested(), *acknowledge(1))
    assert handle(c, Declined("s", 2, "no")) == [AbortSnapshot(2, "s: no")]
    assert handle(c, Tick(10.0), *acknowledge(3), Published(3)) == [
        InjectBarriers(3, SnapshotKind.CHECKPOINT),
        PublishSnapshot(3),
        CompleteSnapshot(3, savepoints=(1,)),
    ]


def test_a_held_savepoint_is_complete_with_the_final_snapshot() -> None:
    c = coordinator(min_pause=2.0)
    handle(c, SavepointRequested(), Acknowledged("s", 1), StopRequested())
    assert handle(c, Acknowledged("t", 1)) == [
        HoldSavepoint(1),
        InjectBarriers(2, SnapshotKind.FINAL),
    ]
    assert handle(c, *acknowledge(2), Published(2))[-1] == FinishJob(2, savepoints=(1,))


def test_a_wanted_snapshot_begins_after_its_delay_though_there_is_no_interval() -> None:
    c = coordinator(interval=None, min_pause=3.0)
    assert handle(c, Tick(7.0), CheckpointRequested(0.5)) == []
    assert c.next_tick() == 7.5
    assert handle(c, Tick(7.4)) == []
    assert handle(c, Tick(7.5)) == [InjectBarriers(1, SnapshotKind.CHECKPOINT)]
    handle(c, *acknowledge(1), Published(1))
    assert c.next_tick() is None
    assert handle(c, Tick(100.0)) == []
    # Without an interval there is no pause to keep.
    assert handle(c, CheckpointRequested(0.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_wanted_snapshot_comes_before_the_interval_is_over_and_starts_it_anew() -> None:
    c = coordinator()
    handle(c, Tick(4.0), CheckpointRequested(1.0))
    assert c.next_tick() == 5.0
    assert handle(c, Tick(5.0)) == [InjectBarriers(1, SnapshotKind.CHECKPOINT)]
    handle(c, *acknowledge(1), Published(1))
    assert c.next_tick() == 15.0


def test_of_several_wishes_the_earliest_counts() -> None:
    c = coordinator(interval=None)
    handle(c, CheckpointRequested(2.0), CheckpointRequested(1.0), CheckpointRequested(3.0))
    assert c.next_tick() == 1.0
    handle(c, Tick(1.0), *acknowledge(1), Published(1))
    assert c.next_tick() is None


def test_a_snapshot_that_begins_for_another_reason_serves_as_the_wanted_one() -> None:
    c = coordinator(interval=None)
    handle(c, CheckpointRequested(5.0), SavepointRequested(), *acknowledge(1))
    handle(c, *acknowledge(2), Published(2))
    assert c.next_tick() is None
    c = coordinator()
    handle(c, CheckpointRequested(15.0), Tick(10.0), *acknowledge(1), Published(1))
    assert c.next_tick() == 20.0


def test_a_snapshot_in_flight_does_not_serve_as_the_wanted_one() -> None:
    c = coordinator(interval=None)
    handle(c, CheckpointRequested(0.0))
    assert handle(c, CheckpointRequested(1.0), Acknowledged("s", 1)) == []
    assert c.next_tick() == 60.0
    handle(c, Tick(5.0), Acknowledged("t", 1))
    assert handle(c, Published(1)) == [
        CompleteSnapshot(1),
        InjectBarriers(2, SnapshotKind.CHECKPOINT),
    ]


def test_a_wanted_snapshot_keeps_the_pause_if_there_is_an_interval() -> None:
    c = coordinator(min_pause=3.0)
    handle(c, Tick(10.0), Tick(11.0), *acknowledge(1), Published(1))
    assert handle(c, CheckpointRequested(0.5)) == []
    assert c.next_tick() == 14.0
    assert handle(c, Tick(13.9)) == []
    assert handle(c, Tick(14.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_wanted_snapshot_that_is_given_up_is_not_begun_again_unless_it_is_wanted_again() -> None:
    c = coordinator(interval=None, tolerable_failures=1)
    handle(c, CheckpointRequested(0.0))
    assert handle(c, Declined("s", 1, "no")) == [AbortSnapshot(1, "s: no")]
    assert c.next_tick() is None
    assert handle(c, CheckpointRequested(0.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]


def test_a_wanted_snapshot_waits_for_numbers() -> None:
    c = coordinator(interval=None, numbers=range(0))
    assert handle(c, CheckpointRequested(0.0)) == [ReserveNumbers()]
    assert handle(c, NumbersReserved(range(5, 40))) == [InjectBarriers(5, SnapshotKind.CHECKPOINT)]


def test_a_stop_overrules_a_wish() -> None:
    c = coordinator()
    handle(c, CheckpointRequested(1.0))
    assert handle(c, StopRequested()) == [InjectBarriers(1, SnapshotKind.FINAL)]
    handle(c, *acknowledge(1))
    assert handle(c, CheckpointRequested(0.0)) == []
    assert handle(c, Published(1)) == [FinishJob(1)]
    assert c.next_tick() is None


def test_numbers_are_reserved_before_they_run_out() -> None:
    c = coordinator(numbers=range(1, 10))
    assert handle(c, Tick(10.0)) == [InjectBarriers(1, SnapshotKind.CHECKPOINT)]
    handle(c, *acknowledge(1), Published(1))
    assert handle(c, Tick(20.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT), ReserveNumbers()]
    handle(c, *acknowledge(2), Published(2))
    assert handle(c, Tick(30.0)) == [InjectBarriers(3, SnapshotKind.CHECKPOINT)]
    assert handle(c, NumbersReserved(range(50, 60))) == []


def test_without_numbers_a_snapshot_waits_for_them() -> None:
    c = coordinator(numbers=range(0))
    assert handle(c, Tick(10.0)) == [ReserveNumbers()]
    assert handle(c, Tick(11.0)) == []
    assert handle(c, NumbersReserved(range(5, 40))) == [InjectBarriers(5, SnapshotKind.CHECKPOINT)]


def test_time_never_goes_back() -> None:
    c = coordinator()
    handle(c, Tick(9.0), Tick(1.0))
    handle(c, SavepointRequested())
    assert c.next_tick() == 69.0


S_LOST, S_BACK = TasksLost(frozenset("s")), TasksReturned(frozenset("s"), range(200, 210))


def with_one_snapshot() -> Coordinator:
    c = coordinator()
    handle(c, Tick(10.0), *acknowledge(1), Published(1))
    return c


def test_lost_tasks_abort_the_snapshot_in_flight_and_do_not_count_as_its_failure() -> None:
    c = with_one_snapshot()
    assert handle(c, Tick(20.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]
    [aborted] = handle(c, S_LOST)
    assert isinstance(aborted, AbortSnapshot) and aborted.number == 2
    assert c.failures == 0


def test_checkpoints_do_without_lost_tasks_until_they_return() -> None:
    c = with_one_snapshot()
    handle(c, S_LOST)
    assert handle(c, Tick(20.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]
    assert c.members == {"t"}
    with pytest.raises(ProtocolError, match="without its barrier"):
        c.handle(Acknowledged("s", 2))
    assert handle(c, Acknowledged("t", 2)) == [PublishSnapshot(2)]
    handle(c, Published(2), S_BACK)
    assert handle(c, Tick(30.0)) == [InjectBarriers(200, SnapshotKind.CHECKPOINT)]
    assert c.members == {"s", "t"}


def test_a_held_savepoint_is_aborted_with_lost_tasks() -> None:
    c = with_one_snapshot()
    handle(c, SavepointRequested(), *acknowledge(2))
    aborted = handle(c, S_LOST)
    assert [one.number for one in aborted if isinstance(one, AbortSnapshot)] == [2, 3]
    assert handle(c, Tick(20.0), Acknowledged("t", 4), Published(4))[-1] == CompleteSnapshot(4)


def test_a_held_savepoint_is_aborted_only_if_the_manifest_with_lost_tasks_fails() -> None:
    for event, held in (Published(3), True), (PublishFailed(3, "full"), False):
        c = coordinator(tolerable_failures=1)
        handle(c, Tick(10.0), *acknowledge(1), Published(1), SavepointRequested())
        handle(c, *acknowledge(2), *acknowledge(3))
        assert handle(c, S_LOST) == []
        commands = handle(c, event)
        if held:
            assert commands == [CompleteSnapshot(3, savepoints=(2,))]
        else:
            numbers = [one.number for one in commands if isinstance(one, AbortSnapshot)]
            assert numbers == [3, 2]


def test_the_first_checkpoint_and_the_last_and_savepoints_wait_for_lost_tasks() -> None:
    c = coordinator()
    assert handle(c, S_LOST, Tick(50.0)) == [] and c.next_tick() is None
    assert handle(c, S_BACK) == [InjectBarriers(200, SnapshotKind.CHECKPOINT)]
    for request, kind in [
        (SavepointRequested(), SnapshotKind.SAVEPOINT),
        (StopRequested(), SnapshotKind.FINAL),
    ]:
        c = with_one_snapshot()
        assert handle(c, S_LOST, request, Tick(50.0)) == [] and c.next_tick() is None
        assert handle(c, S_BACK) == [InjectBarriers(200, kind)]


def test_no_checkpoint_begins_while_all_tasks_are_lost() -> None:
    c = with_one_snapshot()
    assert handle(c, S_LOST, TasksLost(frozenset("t")), Tick(50.0)) == []
    assert handle(c, S_BACK) == [InjectBarriers(200, SnapshotKind.CHECKPOINT)]


def test_no_checkpoint_begins_while_lost_tasks_send_records_to_others_again() -> None:
    c = with_one_snapshot()
    assert handle(c, TasksLost(frozenset("s"), alone=False), Tick(50.0)) == []
    assert c.next_tick() is None
    assert handle(c, S_BACK) == [InjectBarriers(200, SnapshotKind.CHECKPOINT)]
    assert c.members == {"s", "t"}


def test_if_their_region_restarts_as_a_whole_the_others_go_on() -> None:
    c = with_one_snapshot()
    handle(c, TasksLost(frozenset("s"), alone=False), S_LOST)
    assert handle(c, Tick(50.0)) == [InjectBarriers(2, SnapshotKind.CHECKPOINT)]
    assert c.members == {"t"}


def test_tasks_that_are_lost_while_the_manifest_is_written_have_their_part_in_it() -> None:
    c = coordinator()
    handle(c, Tick(10.0), *acknowledge(1))
    assert handle(c, S_LOST) == []
    assert handle(c, Published(1)) == [CompleteSnapshot(1)]


def test_lost_tasks_have_to_end_again() -> None:
    c = with_one_snapshot()
    handle(c, TaskInputEnded("s"), S_LOST, TaskInputEnded("t"), S_BACK)
    assert c.state is CoordinatorState.WAITING
    assert handle(c, TaskInputEnded("s")) == [InjectBarriers(200, SnapshotKind.FINAL)]


def test_numbers_that_were_reserved_before_tasks_returned_are_not_used() -> None:
    c = with_one_snapshot()
    handle(c, S_LOST, S_BACK, NumbersReserved(range(100, 110)), NumbersReserved(range(210, 212)))
    assert c._numbers == [*range(200, 212)]


def test_impossible_events_are_refused() -> None:
    c = coordinator()
    handle(c, Tick(10.0))
    with pytest.raises(ProtocolError, match="unknown task"):
        c.handle(Acknowledged("x", 1))
    with pytest.raises(ProtocolError, match="unknown task"):
        c.handle(TaskInputEnded("x"))
    with pytest.raises(ProtocolError, match="published in state collecting"):
        c.handle(Published(1))
    c.handle(Acknowledged("s", 1))
    with pytest.raises(ProtocolError, match="twice"):
        c.handle(Acknowledged("s", 1))


class AnyOrder(RuleBasedStateMachine):
    """Any events in any order that a driver could bring, against what must always hold."""

    tasks = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_number = 5
        self.c = Coordinator(
            self.tasks,
            now=0.0,
            interval=5.0,
            timeout=20.0,
            min_pause=1.0,
            tolerable_failures=3,
            numbers=range(1, 5),
            announce=True,
        )
        self.announced = 0
        self.injected: list[int] = []
        self.in_flight: int | None = None
        self.acknowledged: set[str] = set()
        self.publishing: int | None = None
        self.published: set[int] = set()
        self.aborted: set[int] = set()
        self.completed: list[int] = []
        self.finished: list[int] = []
        self.reserving = False
        self.ended: set[str] = set()
        self.stopping = False
        self.kinds: dict[int, SnapshotKind] = {}
        self.lost: set[str] = set()
        self.awaited = set[str]()
        self.members: set[str] = set()
        self.has_whole = False
        self.held: list[int] = []

    def handle(self, event: CoordinatorEvent) -> None:
        for command in self.c.handle(event):
            assert not self.finished, "nothing is commanded after the end"
            self.obey(command)

    def obey(self, command: CoordinatorCommand) -> None:
        match command:
            case PrepareSnapshot(number, seconds):
                assert self.in_flight is None, "nobody waits for one while another is in flight"
                assert number > max([self.announced, *self.injected]), "once"
                assert 0 <= seconds <= 0.3
                self.announced = number
            case InjectBarriers(number, kind):
                assert self.in_flight is None, "one in flight"
                assert number >= self.announced, "the next one has the number announced"
                assert not self.injected or number > self.injected[-1], "a number is used once"
                final = self.stopping or self.ended == set(self.tasks)
                assert (kind is SnapshotKind.FINAL) == final
                self.injected.append(number)
                self.kinds[number] = kind
                self.in_flight, self.acknowledged = number, set()
                self.members = set(self.tasks) - self.lost
                assert self.members and not self.awaited
                if self.lost:
                    assert self.has_whole and kind is SnapshotKind.CHECKPOINT
            case PublishSnapshot(number):
                assert number == self.in_flight
                assert self.acknowledged == self.members, "only when all have acknowledged"
                assert number not in self.aborted
                assert self.kinds[number] is not SnapshotKind.SAVEPOINT
                self.publishing = number
            case HoldSavepoint(number):
                assert number == self.in_flight and not self.lost
                assert self.acknowledged == self.members, "only when all have acknowledged"
                assert self.kinds[number] is SnapshotKind.SAVEPOINT
                self.held.append(number)
                self.in_flight = None
            case CompleteSnapshot(number, savepoints) | FinishJob(number, savepoints):
                assert [*savepoints] == self.held, "with the savepoints before it"
                assert all(savepoint < number for savepoint in savepoints)
                assert not savepoints or self.members == set(self.tasks)
                self.completed += savepoints
                self.held = []
                assert number in self.published, "only when its manifest is durable"
                assert number not in self.aborted
                assert isinstance(command, FinishJob) == (self.kinds[number] is SnapshotKind.FINAL)
                self.completed.append(number)
                self.has_whole |= self.members == set(self.tasks)
                if isinstance(command, FinishJob):
                    self.finished.append(number)
                self.in_flight = self.publishing = None
            case AbortSnapshot(number, _):
                assert number not in self.published
                self.aborted.add(number)
                if number in self.held:
                    assert self.lost
                    self.held.remove(number)
                else:
                    assert number == self.in_flight
                    self.in_flight = self.publishing = None
            case ReserveNumbers():
                assert not self.reserving, "asked once"
                self.reserving = True
            case FailAttempt():
                assert len(self.aborted) > 3

    @rule(seconds=st.floats(0.0, 8.0))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.handle(Tick(self.now))

    @precondition(lambda self: self.in_flight is not None and self.publishing is None)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        missing = sorted(self.members - self.acknowledged)
        task = data.draw(st.sampled_from(missing))
        self.acknowledged.add(task)
        assert self.in_flight is not None
        self.handle(Acknowledged(task, self.in_flight))

    @precondition(lambda self: self.aborted)
    @rule(data=st.data(), task=st.sampled_from(tasks))
    def acknowledge_too_late(self, data: st.DataObject, task: str) -> None:
        self.handle(Acknowledged(task, data.draw(st.sampled_from(sorted(self.aborted)))))

    @precondition(lambda self: self.injected)
    @rule(data=st.data(), task=st.sampled_from(tasks))
    def decline(self, data: st.DataObject, task: str) -> None:
        self.handle(Declined(task, data.draw(st.sampled_from(self.injected)), "no"))

    @precondition(lambda self: self.publishing is not None)
    @rule()
    def publish(self) -> None:
        assert self.publishing is not None
        self.published.add(self.publishing)
        self.handle(Published(self.publishing))

    @precondition(lambda self: self.publishing is not None)
    @rule()
    def fail_to_publish(self) -> None:
        assert self.publishing is not None
        self.handle(PublishFailed(self.publishing, "disk full"))

    @rule(task=st.sampled_from(tasks))
    def end(self, task: str) -> None:
        if task not in self.lost:
            self.ended.add(task)
            self.handle(TaskInputEnded(task))

    @rule(task=st.sampled_from(tasks), alone=st.booleans())
    def lose(self, task: str, alone: bool) -> None:
        if task not in self.lost:
            self.lost.add(task)
            self.ended.discard(task)
            if not alone:
                self.awaited.add(task)
            self.handle(TasksLost(frozenset([task]), alone))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.lost)))
        self.lost.discard(task)
        self.awaited.discard(task)
        numbers = range(self.next_number, self.next_number + 10)
        self.next_number += 10
        self.handle(TasksReturned(frozenset([task]), numbers))

    @precondition(lambda self: self.reserving)
    @rule()
    def reserve(self) -> None:
        self.reserving = False
        numbers = range(self.next_number, self.next_number + 10)
        self.next_number += 10
        self.handle(NumbersReserved(numbers))

    @rule()
    def savepoint(self) -> None:
        self.handle(SavepointRequested())

    @rule(seconds=st.floats(0.0, 3.0))
    def want(self, seconds: float) -> None:
        self.handle(CheckpointRequested(seconds))
        if self.in_flight is None and not self.finished and not self.lost:
            due = self.c.next_tick()
            # The pause of one second after the last one is all that it waits for besides.
            assert due is not None and due <= self.now + max(seconds, 1.0)

    @rule()
    def stop(self) -> None:
        self.stopping = True
        self.handle(StopRequested())

    @invariant()
    def it_ends_at_most_once_and_never_sticks(self) -> None:
        assert len(self.finished) <= 1
        due = self.stopping or self.ended == set(self.tasks)
        if due and not self.finished and not self.lost:
            # Something is on its way: a snapshot, or the numbers for one.
            assert self.in_flight is not None or self.reserving
        assert len(set(self.completed)) == len(self.completed)
        assert not self.held or self.in_flight is not None or self.c.next_tick() or self.reserving


AnyOrder.TestCase.settings = settings(
    max_examples=sized(120, 1200), stateful_step_count=50, deadline=None
)
TestAnyOrder = AnyOrder.TestCase
