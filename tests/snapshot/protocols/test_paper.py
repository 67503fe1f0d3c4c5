"""The two algorithms of the paper, line by line, against `aligned` and `aligned_cyclic`.

Carbone, Fóra, Ewen, Haridi, Tzoumas: Lightweight Asynchronous Snapshots for Distributed
Dataflows (2015), sections 4.2 and 4.3. A test names the lines of the listing that it is about. The
listings know one snapshot; what more than one needs is tested below Algorithm 1, and for
Algorithm 2 in `test_aligned_cyclic.py`.
"""

from __future__ import annotations

import itertools
import random

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.base import Phase
from penstock.snapshot.protocols.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierSent,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    EndLog,
    Event,
    SnapshotAborted,
    SnapshotCompleted,
    StartLog,
    UnblockChannels,
)
from tests.snapshot.protocols.driven import DrivenProtocol

# ---- Algorithm 1


class Driven(DrivenProtocol[AlignedProtocol]):
    """The inputs a, b and c."""

    def __init__(self, inputs: str = "abc") -> None:
        super().__init__(AlignedProtocol(inputs))


def test_lines_1_to_4_nothing_is_blocked_at_first() -> None:
    protocol = Driven().protocol
    assert protocol.phase is Phase.IDLE
    assert not protocol.blocked
    assert protocol.inputs == ("a", "b", "c")


def test_lines_6_to_9_an_input_that_brought_the_barrier_is_blocked() -> None:
    task = Driven()
    assert task.barrier("b") == [BlockChannel("b")]
    assert list(task.protocol.blocked) == ["b"]
    assert task.barrier("a") == [BlockChannel("a")]
    assert task.protocol.phase is Phase.ALIGNING


def test_line_7_a_barrier_from_nil_blocks_nothing() -> None:
    assert Driven("").barrier(None) == [CopyState(1), Broadcast(1)]


def test_line_10_nothing_is_done_until_all_inputs_are_blocked() -> None:
    task = Driven()
    for channel in "ab":
        commands = task.barrier(channel)
        assert not any(isinstance(command, CopyState | Broadcast) for command in commands)


def test_line_11_no_input_counts_as_blocked_afterwards() -> None:
    task = Driven("ab")
    task.barrier("a")
    task.barrier("b")
    assert not task.protocol.blocked
    assert task.protocol.phase is Phase.IDLE


def test_lines_12_and_13_the_state_is_copied_before_the_barrier_goes_out() -> None:
    # The listing broadcasts first and snapshots in the same step; the copy comes first here
    # because only the copy is made in the step, and the rest of the snapshot after it.
    task = Driven("ab")
    task.barrier("a")
    commands = task.barrier("b")
    assert commands[:2] == [CopyState(1), Broadcast(1)]


def test_lines_14_and_15_all_blocked_inputs_are_unblocked_last() -> None:
    task = Driven("abc")
    task.barrier("c")
    task.barrier("a")
    assert task.barrier("b") == [CopyState(1), Broadcast(1), UnblockChannels(("c", "a"))]


def test_lines_10_to_15_a_task_with_one_input_never_blocks() -> None:
    assert Driven("a").barrier("a") == [CopyState(1), Broadcast(1)]


def test_lines_10_to_15_for_a_source_line_10_holds_at_once_every_time() -> None:
    source = Driven("")
    for number in (1, 2, 5):
        assert source.barrier(None, number) == [CopyState(number), Broadcast(number)]


def test_lines_18_to_22_records_are_no_business_of_the_protocol() -> None:
    # They change state and are sent on, whatever is going on: only blocking holds them up.
    assert set(Event.__args__) == {
        BarrierArrived,
        BarrierAnnounced,
        BarrierSent,
        AlignmentTimedOut,
        SnapshotAborted,
        SnapshotCompleted,
    }


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_every_order_of_the_barriers_makes_one_snapshot(order: str) -> None:
    task = Driven()
    commands = [command for channel in order for command in task.barrier(channel)]
    assert commands == [
        BlockChannel(order[0]),
        BlockChannel(order[1]),
        CopyState(1),
        Broadcast(1),
        UnblockChannels((order[0], order[1])),
    ]


def test_the_next_snapshot_begins_like_the_first() -> None:
    task = Driven("ab")
    for number in (1, 2, 3):
        assert task.barrier("a", number) == [BlockChannel("a")]
        assert task.barrier("b", number)[:2] == [CopyState(number), Broadcast(number)]


# ---- more than one snapshot


def test_a_barrier_of_a_finished_snapshot_is_dropped_and_not_marked() -> None:
    task = Driven("ab")
    task.barrier("a", 2)
    task.barrier("b", 2)
    assert task.barrier("a", 1) == []
    assert task.barrier("a", 2) == []
    assert task.protocol.phase is Phase.IDLE


def test_a_lower_barrier_while_aligning_is_dropped_and_not_marked() -> None:
    task = Driven("abc")
    task.barrier("a", 5)
    assert task.barrier("b", 4) == []
    assert list(task.protocol.blocked) == ["a"]
    assert task.barrier("b", 5) == [BlockChannel("b")]


def test_a_higher_barrier_gives_up_the_lower_snapshot_without_its_abort() -> None:
    task = Driven("abc")
    task.barrier("a", 1)
    task.barrier("b", 1)
    assert task.barrier("c", 2) == [UnblockChannels(("a", "b")), BlockChannel("c")]
    assert task.protocol.number == 2
    assert task.barrier("a", 1) == []


def test_a_higher_barrier_on_the_last_missing_input_of_two() -> None:
    task = Driven("ab")
    task.barrier("a", 1)
    assert task.barrier("b", 2) == [UnblockChannels(("a",)), BlockChannel("b")]
    assert task.barrier("a", 2) == [CopyState(2), Broadcast(2), UnblockChannels(("b",))]


def test_an_abort_unblocks_what_is_blocked() -> None:
    task = Driven("abc")
    task.barrier("a")
    task.barrier("c")
    assert task.abort() == [UnblockChannels(("a", "c"))]
    assert task.protocol.phase is Phase.IDLE


def test_barriers_of_an_aborted_snapshot_are_stale() -> None:
    task = Driven("ab")
    task.barrier("a", 3)
    task.abort(3)
    assert task.barrier("b", 3) == []
    assert task.barrier("b", 4) == [BlockChannel("b")]


def test_an_abort_before_the_first_barrier_makes_all_of_them_stale() -> None:
    task = Driven("ab")
    assert task.abort(7) == []
    assert task.barrier("a", 7) == []
    assert task.barrier("b", 7) == []
    assert task.barrier("a", 8) == [BlockChannel("a")]


def test_a_source_drops_a_barrier_whose_abort_overtook_it() -> None:
    source = Driven("")
    source.abort(1)
    assert source.barrier(None, 1) == []
    assert source.barrier(None, 2) == [CopyState(2), Broadcast(2)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_abort_of_another_snapshot_leaves_the_one_being_aligned(number: int) -> None:
    task = Driven("ab")
    task.barrier("a", 3)
    assert task.abort(number) == []
    assert task.barrier("b", 3)[:2] == [CopyState(3), Broadcast(3)]


def test_an_abort_after_the_snapshot_changes_nothing() -> None:
    task = Driven("ab")
    task.barrier("a")
    task.barrier("b")
    assert task.abort() == []
    assert task.abort() == []
    assert task.barrier("a", 2) == [BlockChannel("a")]


def test_impossible_events_are_refused_and_change_nothing() -> None:
    task = Driven("ab")
    task.barrier("a")
    for event in (BarrierArrived("a", 1), BarrierArrived("x", 1), BarrierArrived(None, 1)):
        with pytest.raises(ProtocolError, match="aligning"):
            task.handle(event)
        task.protocol.validate()
        assert list(task.protocol.blocked) == ["a"]
    with pytest.raises(ProtocolError):
        Driven("").barrier("a")


def test_validate_finds_what_cannot_be() -> None:
    protocol = AlignedProtocol("ab")
    protocol.blocked["a"] = None
    with pytest.raises(ProtocolError, match="inconsistent"):
        protocol.validate()
    protocol.phase, protocol.number = Phase.ALIGNING, -1
    with pytest.raises(ProtocolError, match="settled"):
        protocol.validate()
    protocol.number = 1
    protocol.blocked["b"] = None
    with pytest.raises(ProtocolError, match="all inputs"):
        protocol.validate()
    protocol.blocked = {"z": None}
    with pytest.raises(ProtocolError, match="no inputs"):
        protocol.validate()


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_barriers_and_aborts_keeps_the_rules(seed: int) -> None:
    """Per channel numbers only rise; blocked channels deliver nothing; aborts come at any time.

    After every event: what was told to be blocked is what the protocol has blocked; no number is
    copied twice, copies only rise, and each is made when all inputs have brought that very number.
    """
    rng = random.Random(seed)
    task = Driven("abc")
    last = dict.fromkeys("abc", 0)
    blocked: set[object] = set()
    copied: list[int] = []
    for _ in range(200):
        free = [channel for channel in "abc" if channel not in blocked]
        if rng.random() < 0.15:
            number = rng.randint(1, max(last.values()) + 1)
            commands = task.abort(number)
        else:
            channel = rng.choice(free)
            last[channel] = rng.randint(last[channel] + 1, max(*last.values(), last[channel] + 1))
            commands = task.barrier(channel, last[channel])
        for command in commands:
            match command:
                case BlockChannel(channel):
                    blocked.add(channel)
                case UnblockChannels(channels):
                    assert blocked.issuperset(channels), seed
                    blocked.difference_update(channels)
                case CopyState(number):
                    assert not copied or number > copied[-1], seed
                    assert all(arrived == number for arrived in last.values()), seed
                    copied.append(number)
                case Broadcast(number):
                    assert copied[-1] == number, seed
        assert blocked == set(task.protocol.blocked), seed
        assert len(blocked) < 3, seed
    assert copied, seed


# ---- Algorithm 2


class Looped(DrivenProtocol[AlignedCyclicProtocol]):
    """Regular inputs a and b and back-edges x and y."""

    def __init__(self, inputs: str = "abxy", back_edges: str = "xy") -> None:
        super().__init__(AlignedCyclicProtocol(inputs, back_edges))


def test_algorithm_2_lines_1_to_6_nothing_is_marked_blocked_or_logged_at_first() -> None:
    protocol = Looped().protocol
    assert protocol.phase is Phase.IDLE
    assert not protocol.marked and not protocol.blocked
    assert protocol.inputs == ("a", "b", "x", "y")
    assert protocol.back_edges == {"x", "y"}


def test_algorithm_2_lines_9_to_12_a_regular_input_that_brought_the_barrier_is_blocked() -> None:
    task = Looped()
    assert task.barrier("b") == [BlockChannel("b")]
    assert list(task.protocol.marked) == ["b"]
    assert task.protocol.phase is Phase.ALIGNING


def test_algorithm_2_line_11_mended_a_back_edge_is_blocked_too_before_the_cut() -> None:
    # As printed it is not, and what comes behind its barrier gets into the copy.
    task = Looped()
    assert task.barrier("x") == [BlockChannel("x")]
    assert task.protocol.phase is Phase.ALIGNING


def test_algorithm_2_line_10_back_edges_are_not_waited_for() -> None:
    task = Looped()
    task.barrier("a")
    assert task.barrier("b")[0] == CopyState(1)
    assert task.protocol.phase is Phase.LOGGING


def test_algorithm_2_line_13_mended_the_cut_is_made_though_a_back_edge_is_marked() -> None:
    # As printed (`marked = regular`) it never is, and the snapshot never ends.
    task = Looped()
    task.barrier("x")
    task.barrier("a")
    assert CopyState(1) in task.barrier("b")


def test_algorithm_2_lines_14_to_17_copy_log_broadcast_and_unblock_in_this_order() -> None:
    task = Looped()
    task.barrier("b")
    assert task.barrier("a") == [
        CopyState(1),
        StartLog(1, ("x", "y")),
        Broadcast(1),
        UnblockChannels(("b",)),
    ]


def test_algorithm_2_line_16_mended_all_inputs_are_unblocked() -> None:
    task = Looped()
    task.barrier("y")
    task.barrier("a")
    assert task.barrier("b")[-1] == UnblockChannels(("y", "a"))
    assert not task.protocol.blocked


def test_algorithm_2_lines_13_to_17_one_regular_input_is_never_blocked() -> None:
    task = Looped("ax", "x")
    assert task.barrier("a") == [CopyState(1), StartLog(1, ("x",)), Broadcast(1)]


def test_algorithm_2_line_19_the_snapshot_ends_when_all_inputs_are_marked() -> None:
    task = Looped()
    task.barrier("a")
    task.barrier("b")
    assert task.announced("y") == []
    assert task.protocol.phase is Phase.LOGGING
    assert task.announced("x") == [EndLog(1)]


def test_algorithm_2_line_19_it_ends_with_the_cut_if_all_back_edges_were_marked_before() -> None:
    task = Looped()
    for channel in "xya":
        task.barrier(channel)
    assert task.barrier("b") == [
        CopyState(1),
        StartLog(1, ()),
        Broadcast(1),
        UnblockChannels(("x", "y", "a")),
        EndLog(1),
    ]


def test_algorithm_2_lines_21_and_22_nothing_is_marked_or_logged_afterwards() -> None:
    task = Looped("ax", "x")
    task.barrier("a")
    task.announced("x")
    assert task.protocol.phase is Phase.IDLE
    assert not task.protocol.marked and task.protocol.number is None


def test_algorithm_2_line_25_what_was_marked_before_the_cut_is_not_logged() -> None:
    task = Looped()
    task.barrier("x")
    task.barrier("a")
    assert StartLog(1, ("y",)) in task.barrier("b")


def test_algorithm_2_line_25_a_log_ends_where_the_barrier_arrives_and_not_where_it_is_taken() -> (
    None
):
    task = Looped("ax", "x")
    task.barrier("a")
    assert task.announced("x") == [EndLog(1)]
    assert task.barrier("x") == []


@pytest.mark.parametrize("order", list(itertools.permutations("abxy")), ids="".join)
def test_algorithm_2_every_order_of_the_barriers_makes_one_snapshot(order: tuple[str, ...]) -> None:
    task = Looped()
    commands: list[Command] = []
    for channel in order:
        logging = task.protocol.phase is Phase.LOGGING
        commands += task.announced(channel) if logging else task.barrier(channel)
    cut = max(order.index("a"), order.index("b"))
    missing = tuple(sorted(order[cut + 1 :]))
    before: list[Command] = [BlockChannel(channel) for channel in order[:cut]]
    assert commands == [
        *before,
        CopyState(1),
        StartLog(1, missing),
        Broadcast(1),
        UnblockChannels(order[:cut]),
        EndLog(1),
    ]
