"""Algorithm 2 beyond the listing: more than one snapshot, and whole graphs in every order.

What the listing says is tested line by line in `test_paper.py`. Here first the protocol of one
task, event by event. Then a model of small cyclic graphs (`simulation/protocol_model.py`), in which
only the protocols are real: every order in which tasks can take what waits for them, barriers
behind every record, aborts heard at any time. In each order the snapshot must end, each record
that came into being before the cut must be in one state or one log, and what is restored must come
to the same as the undisturbed run. Wrong rules must be found out by the same search.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.base import Phase
from penstock.snapshot.protocols.events import (
    BarrierAnnounced,
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    StartLog,
    UnblockChannels,
)
from tests.simulation.execution import Edge, Record, Violation
from tests.simulation.mutants import AsPrinted, SubsetOnly
from tests.simulation.protocol_model import Graph, Model, Outside
from tests.snapshot.protocols.driven import DrivenProtocol


class Driven(DrivenProtocol[AlignedCyclicProtocol]):
    """Regular inputs a and b and back-edges x and y."""

    def __init__(self, inputs: str = "abxy", back_edges: str = "xy") -> None:
        super().__init__(AlignedCyclicProtocol(inputs, back_edges))

    def cut(self, number: int = 1) -> list[Command]:
        return self.barrier("a", number) + self.barrier("b", number)


def test_a_task_has_a_regular_input_and_its_back_edges_are_inputs() -> None:
    with pytest.raises(ProtocolError, match="leave one that is regular"):
        AlignedCyclicProtocol("xy", "xy")
    with pytest.raises(ProtocolError, match="must be inputs"):
        AlignedCyclicProtocol("ab", "x")


def test_barriers_of_a_snapshot_that_is_being_logged_are_stale_when_they_are_taken() -> None:
    task = Driven()
    task.cut()
    assert task.barrier("x") == []
    task.announced("x")
    assert task.barrier("x") == []
    assert task.announced("y") == [EndLog(1)]
    assert task.barrier("y") == []
    assert task.protocol.phase is Phase.IDLE


def test_a_barrier_reached_while_nothing_is_logged_changes_nothing() -> None:
    task = Driven()
    assert task.announced("x") == []
    task.barrier("a")
    assert task.announced("x") == []
    assert task.protocol.phase is Phase.ALIGNING
    assert task.barrier("x") == [BlockChannel("x")]


def test_a_lower_barrier_that_is_reached_ends_no_log() -> None:
    task = Driven("ax", "x")
    task.barrier("a", 5)
    assert task.announced("x", 4) == []
    assert task.announced("x", 5) == [EndLog(5)]


def test_a_lower_barrier_is_dropped_and_not_marked() -> None:
    task = Driven()
    task.barrier("x", 5)
    assert task.barrier("a", 4) == []
    assert task.barrier("y", 4) == []
    assert list(task.protocol.marked) == ["x"]


@pytest.mark.parametrize("channel", ["a", "x"])
def test_a_higher_barrier_while_aligning_gives_up_the_lower_snapshot(channel: str) -> None:
    task = Driven("abxy", "xy")
    task.barrier("y")
    task.barrier("b")
    assert task.barrier(channel, 2) == [UnblockChannels(("y", "b")), BlockChannel(channel)]
    assert task.protocol.number == 2
    assert task.barrier("b", 1) == []


def test_a_higher_barrier_on_a_regular_input_while_logging_drops_the_log() -> None:
    task = Driven()
    task.cut()
    task.announced("x")
    assert task.barrier("a", 2) == [DropLog(1), BlockChannel("a")]
    assert task.announced("y", 1) == []
    assert task.barrier("b", 2) == [
        CopyState(2),
        StartLog(2, ("x", "y")),
        Broadcast(2),
        UnblockChannels(("a",)),
    ]


def test_a_higher_barrier_on_the_only_regular_input_drops_one_log_and_begins_the_next() -> None:
    task = Driven("ax", "x")
    task.barrier("a", 1)
    assert task.barrier("a", 2) == [DropLog(1), CopyState(2), StartLog(2, ("x",)), Broadcast(2)]
    assert task.announced("x", 1) == []
    assert task.announced("x", 2) == [EndLog(2)]


def test_a_higher_barrier_taken_from_a_back_edge_while_logging_drops_the_log() -> None:
    task = Driven()
    task.cut()
    assert task.barrier("x", 2) == [DropLog(1), BlockChannel("x")]
    assert task.protocol.phase is Phase.ALIGNING


def test_a_higher_barrier_that_is_reached_while_logging_drops_the_log_and_is_taken_later() -> None:
    task = Driven()
    task.cut()
    assert task.announced("y", 3) == [DropLog(1)]
    assert task.protocol.phase is Phase.IDLE
    assert task.barrier("y", 3) == [BlockChannel("y")]


def test_an_abort_while_aligning_unblocks_what_is_blocked() -> None:
    task = Driven()
    task.barrier("x")
    task.barrier("a")
    assert task.abort() == [UnblockChannels(("x", "a"))]
    assert task.barrier("b") == []


def test_an_abort_while_logging_drops_the_log() -> None:
    task = Driven()
    task.cut()
    task.announced("x")
    assert task.abort() == [DropLog(1)]
    assert task.announced("y") == []
    assert task.barrier("y") == []
    assert task.cut(2)[1:3] == [CopyState(2), StartLog(2, ("x", "y"))]


def test_an_abort_before_the_first_barrier_makes_all_of_them_stale() -> None:
    task = Driven()
    assert task.abort(7) == []
    for channel in "axby":
        assert task.barrier(channel, 7) == []
    assert task.barrier("x", 8) == [BlockChannel("x")]


def test_an_abort_of_a_lower_snapshot_leaves_the_one_at_hand() -> None:
    task = Driven()
    task.barrier("a", 3)
    assert task.abort(2) == []
    task.barrier("b", 3)
    assert task.abort(2) == []
    assert task.protocol.phase is Phase.LOGGING


def test_an_abort_of_a_higher_snapshot_says_that_the_one_at_hand_is_over_too() -> None:
    task = Driven()
    task.barrier("x", 1)
    assert task.abort(2) == [UnblockChannels(("x",))]
    assert task.barrier("a", 2) == []
    task.cut(3)
    assert task.abort(4) == [DropLog(3)]


def test_impossible_events_are_refused_and_change_nothing() -> None:
    task = Driven()
    task.barrier("x")
    for event in (
        BarrierArrived(None, 1),
        BarrierArrived("z", 1),
        BarrierArrived("x", 1),
        BarrierAnnounced("a", 1),
    ):
        with pytest.raises(ProtocolError, match="phase aligning, number 1"):
            task.handle(event)
        assert list(task.protocol.blocked) == ["x"]
    task.abort()
    task.cut(2)
    task.announced("x", 2)
    with pytest.raises(ProtocolError, match="second time"):
        task.announced("x", 2)
    with pytest.raises(ProtocolError, match="without back-edges"):
        AlignedProtocol("a").handle(BarrierAnnounced("a", 1))


def test_validate_finds_what_cannot_be() -> None:
    def broken(match: str, **changes: object) -> None:
        protocol = AlignedCyclicProtocol("abx", "x")
        for name, value in changes.items():
            setattr(protocol, name, value)
        with pytest.raises(ProtocolError, match=match):
            protocol.validate()

    a, ab = {"a": None}, {"a": None, "b": None}
    broken("inconsistent", marked=a)
    broken("inconsistent", number=1)
    broken("no inputs", phase=Phase.ALIGNING, number=1, marked={"z": None}, blocked={"z": None})
    broken("wrong channels", phase=Phase.ALIGNING, number=1, marked=a)
    broken("wrong channels", phase=Phase.LOGGING, number=1, settled=1, marked=ab, blocked=a)
    broken("settled number", phase=Phase.ALIGNING, number=1, settled=1, marked=a, blocked=a)
    broken("overdue", phase=Phase.ALIGNING, number=1, marked=ab, blocked=ab)
    broken("no snapshot was taken", phase=Phase.LOGGING, number=1, marked=ab)
    broken("nothing to log", phase=Phase.LOGGING, number=1, settled=1, marked=a)


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_events_keeps_the_rules(seed: int) -> None:
    """Per channel numbers only rise, blocked channels deliver nothing, aborts come at any time.

    Commands are obeyed by a gate of two lines: what is blocked, and the log that is open. Each copy
    is made when all regular inputs have brought that very number, and each log ends or is dropped.
    """
    rng = random.Random(seed)
    task = Driven()
    last = dict.fromkeys("abxy", 0)
    blocked: set[object] = set()
    copied: list[int] = []
    open_log: int | None = None
    missing: set[object] = set()
    reached: dict[object, int] = {}
    for _ in range(300):
        channel = rng.choice([c for c in "abxy" if c not in blocked])
        number = reached.pop(channel, None)
        if number is None:
            number = rng.randint(last[channel] + 1, max(*last.values(), last[channel] + 1))
            if channel in missing and open_log is not None and number >= open_log:
                # It is told when it arrives, and taken some time later.
                reached[channel] = last[channel] = number
                missing.discard(channel)
                commands = task.announced(channel, number)
            elif rng.random() < 0.1:
                commands = task.abort(rng.randint(1, max(last.values()) + 1))
            else:
                last[channel] = number
                commands = task.barrier(channel, number)
        else:
            commands = task.barrier(channel, number)
        for command in commands:
            match command:
                case BlockChannel(at):
                    blocked.add(at)
                case UnblockChannels(channels):
                    assert blocked.issuperset(channels), seed
                    blocked.difference_update(channels)
                case CopyState(copy):
                    assert not copied or copy > copied[-1], seed
                    assert last["a"] == last["b"] == copy, seed
                    copied.append(copy)
                case StartLog(copy, channels):
                    assert open_log is None and copied[-1] == copy, seed
                    open_log, missing = copy, set(channels) - reached.keys()
                case EndLog(copy) | DropLog(copy):
                    assert open_log == copy, seed
                    assert not (isinstance(command, EndLog) and missing), seed
                    open_log, missing = None, set()
        # What had arrived before the log was opened is told at once.
        for at, waiting in list(reached.items()):
            if open_log is not None and at not in task.protocol.marked and waiting >= open_log:
                assert DropLog(open_log) not in commands
                for command in task.announced(str(at), waiting):
                    assert command in (EndLog(open_log), DropLog(open_log)), seed
                    open_log, missing = None, set()
                    break
        assert blocked == set(task.protocol.blocked), seed
        assert (open_log is None) == (task.protocol.phase is not Phase.LOGGING), seed
        assert len(blocked) < 4, seed
    assert copied, seed


# ---- whole graphs, in every order

SHUFFLED = "two tasks, shuffled both ways"


def _each(operator: str, *records: tuple[Record, ...]) -> dict[str, Outside]:
    """One channel from outside for each subtask of an operator, with these records."""
    return {operator: tuple((content,) for content in records)}


def _loops(how: str) -> dict[str, Graph]:
    """Small cyclic graphs; `how` the back-edges spread records over two subtasks."""
    into = Edge("A", "B", "forward")
    return {
        "self-loop": Graph((Edge("A", "A", how, True),), _each("A", ((0, 4), (1, 3)), ((2, 4),))),
        "two tasks": Graph(
            (into, Edge("B", "A", how, True)), _each("A", ((0, 4), (2, 1)), ((1, 4),))
        ),
        SHUFFLED: Graph(
            (Edge("A", "B", "hash"), Edge("B", "A", how, True)), _each("A", ((0, 4),), ((1, 3),))
        ),
        "nested": Graph(
            (
                into,
                Edge("B", "C", "forward"),
                Edge("C", "B", how, True),
                Edge("C", "A", how, True),
            ),
            _each("A", ((0, 5),), ((1, 5),)),
        ),
        "two loops that share a task": Graph(
            (
                into,
                Edge("A", "C", "forward"),
                Edge("B", "A", how, True),
                Edge("C", "A", "forward", True),
            ),
            _each("A", ((0, 5),), ((1, 5),)),
        ),
        "entered at two places": Graph(
            (into, Edge("B", "A", how, True)),
            {**_each("A", ((0, 4),), ()), **_each("B", ((2, 3),), ())},
        ),
    }


@pytest.mark.parametrize("how", ["hash", "forward"])
@pytest.mark.parametrize("name", _loops("hash"))
def test_a_snapshot_of_a_cyclic_graph_is_feasible_and_ends_in_every_order(
    name: str, how: str
) -> None:
    found = Model(_loops(how)[name]).search()
    # Different cuts were met, some of them with records under way on back-edges.
    assert found.worlds > 1000 and found.cuts > 8 and found.logged > 8, found


LONE = Graph((Edge("A", "A", "hash", True),), _each("A", ((0, 2),), ()), numbers=(1, 2))
PAIR = Graph(
    (Edge("A", "B", "forward"), Edge("B", "A", "hash", True)),
    _each("A", ((0, 2),), ()),
    numbers=(1, 2),
)
NESTED = replace(
    _loops("forward")["nested"], parallelism=1, outside=_each("A", ((0, 4), (1, 4))), numbers=(1, 2)
)
SHARED = replace(
    _loops("forward")["two loops that share a task"],
    parallelism=1,
    outside={"A": ((((0, 4),), ((1, 4),)),)},
    numbers=(1, 2),
)
SECOND = {
    "self-loop, no abort comes": LONE,
    "self-loop, an abort": replace(LONE, aborts=(1,)),
    "self-loop, one source never sends": replace(LONE, aborts=(1,), unsent=(("A", 1, 1),)),
    "two tasks, no abort comes": PAIR,
    "two tasks, one source never sends": replace(PAIR, aborts=(1,), unsent=(("A", 0, 1),)),
    "nested, an abort": replace(NESTED, aborts=(1,)),
    "two loops that share a task, no abort comes": SHARED,
}


@pytest.mark.parametrize("late", [False, True], ids=["told at once", "told afterwards"])
@pytest.mark.parametrize("name", SECOND)
def test_the_snapshot_after_one_that_was_given_up_is_feasible_and_ends(
    name: str, late: bool
) -> None:
    found = Model(SECOND[name], late=late).search()
    assert found.worlds > 1000 and found.cuts > 2, found


# ---- wrong rules, which the same search must find out


class LogsForEver(AlignedCyclicProtocol):
    """A task that logs does not hear of the next snapshot."""

    def handle(self, event: Event) -> list[Command]:
        if self.phase is Phase.LOGGING and not isinstance(event, BarrierAnnounced):
            return []
        return super().handle(event)


@pytest.mark.parametrize("name", sorted(_loops("hash").keys() - {SHUFFLED}))
@pytest.mark.parametrize(
    ("rule", "how"), [(SubsetOnly, "^doubled"), (AsPrinted, "^waits for ever")]
)
def test_a_wrong_rule_for_the_cut_is_found_out(
    rule: type[AlignedCyclicProtocol], how: str, name: str
) -> None:
    with pytest.raises(Violation, match=how):
        Model(_loops("hash")[name], rule).search()


@pytest.mark.parametrize("rule", [SubsetOnly, AsPrinted])
def test_wrong_rules_are_right_as_long_as_no_barrier_comes_round_before_the_cut(
    rule: type[AlignedCyclicProtocol],
) -> None:
    # With a shuffle inside the loop, all subtasks make their cut before one barrier comes back.
    Model(_loops("hash")[SHUFFLED], rule).search()


def test_a_task_that_never_gives_up_its_log_is_found_out() -> None:
    with pytest.raises(Violation, match="waits for ever"):
        Model(SECOND["self-loop, one source never sends"], LogsForEver).search()
