"""Whether a program fits a snapshot: the graph and the manifest in, differences out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.snapshot.coordination.compatibility import Difference, Verdict, require_compatible
from penstock.snapshot.coordination.graph_compatibility import EdgeEntry, compare_graph
from penstock.snapshot.metadata.handles import LogHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)

SOURCE = OperatorEntry("lines", "read lines", "source", 2, 128, True)
SPLIT = OperatorEntry("split", "split", "flat_map", 2, 128, False)
COUNT = OperatorEntry("count", "count words", "reduce", 2, 128, True)


def manifest(number: int, *operators: OperatorEntry) -> Manifest:
    kind = SnapshotKind.CHECKPOINT
    return Manifest(
        "words", "old", None, SnapshotNumber(number), kind, 0, 1, "0.1.0", "f", operators
    )


def verdicts(before: Manifest, *operators: OperatorEntry) -> dict[str, Verdict]:
    return {item.uid: item.verdict for item in compare_graph(before, operators, [])}


def test_the_same_program_differs_in_nothing() -> None:
    assert compare_graph(manifest(1, SOURCE, SPLIT, COUNT), [COUNT, SPLIT, SOURCE], []) == []


def test_operators_without_state_come_go_and_change_freely() -> None:
    before = manifest(1, SOURCE, SPLIT)
    other = replace(SPLIT, kind="map", parallelism=7, max_parallelism=64)
    assert compare_graph(before, [SOURCE], []) == []
    assert compare_graph(before, [SOURCE, other, replace(SPLIT, uid="another")], []) == []


def test_a_new_operator_with_state_starts_empty() -> None:
    assert verdicts(manifest(1, SOURCE), SOURCE, COUNT) == {"count": Verdict.NEW}
    stateless_before = manifest(1, SOURCE, replace(COUNT, stateful=False, kind="map"))
    assert verdicts(stateless_before, SOURCE, COUNT) == {"count": Verdict.NEW}


def test_state_whose_operator_is_gone_is_dropped() -> None:
    assert verdicts(manifest(1, SOURCE, COUNT), SOURCE) == {"count": Verdict.DROPPED}
    stateless = replace(COUNT, stateful=False)
    assert verdicts(manifest(1, COUNT), stateless) == {"count": Verdict.DROPPED}


def test_a_renamed_uid_is_guessed() -> None:
    renamed = replace(COUNT, uid="words")
    dropped, new = compare_graph(manifest(1, SOURCE, COUNT), [SOURCE, renamed], [])
    assert dropped.verdict is Verdict.DROPPED
    assert "if it is 'words' now, give that its former uid 'count'" in dropped.reason
    assert new.verdict is Verdict.NEW


def test_an_operator_of_the_same_name_that_was_there_before_is_not_guessed() -> None:
    twin = replace(COUNT, uid="twin")
    (dropped,) = compare_graph(manifest(1, COUNT, twin), [twin], [])
    assert "former uid" not in dropped.reason


def test_another_kind_or_other_key_groups_are_refused() -> None:
    before = manifest(1, COUNT)
    assert verdicts(before, replace(COUNT, kind="window")) == {"count": Verdict.REFUSED}
    assert verdicts(before, replace(COUNT, max_parallelism=64)) == {"count": Verdict.REFUSED}


def test_another_parallelism_is_a_rescale() -> None:
    (difference,) = compare_graph(manifest(1, COUNT), [replace(COUNT, parallelism=5)], [])
    assert difference == Difference(
        "count", "count words", Verdict.RESCALED, "parallelism was 2 and is 5"
    )
    require_compatible([difference])


def test_everything_in_the_way_is_said_at_once() -> None:
    before = manifest(1, SOURCE, COUNT, replace(COUNT, uid="gone", name="gone"))
    after = [replace(SOURCE, kind="socket"), replace(COUNT, max_parallelism=64)]
    differences = compare_graph(before, after, [])
    with pytest.raises(GraphError) as caught:
        require_compatible(differences)
    message = str(caught.value)
    assert "lines (read lines): refused: it was a source and is a socket" in message
    assert "count (count words): refused: max_parallelism was 128 and is 64" in message
    assert "gone (gone): dropped" in message
    assert "--allow-dropped" in message


def test_dropped_state_may_be_allowed_but_nothing_else() -> None:
    before = manifest(1, SOURCE, COUNT)
    require_compatible(compare_graph(before, [SOURCE], []), allow_dropped=True)
    with pytest.raises(GraphError, match="socket") as caught:
        differences = compare_graph(before, [replace(SOURCE, kind="socket")], [])
        require_compatible(differences, allow_dropped=True)
    assert "dropped" not in str(caught.value)


# ---- records in flight

SCORE = OperatorEntry("score", "score", "process", 2, 128, False)


def looping(records: int, partitioning: Partitioning = Partitioning.HASH) -> Manifest:
    """A snapshot of a loop split → score → split with so many records in each subtask's log."""
    handles = [
        OperatorHandle(
            "split",
            subtask,
            logs=(LogHandle("score", 0, 1, partitioning.value, records, 9 * records, b""),),
        )
        for subtask in range(2)
    ]
    return replace(manifest(1, SOURCE, SPLIT, SCORE), handles=tuple(handles))


def back(partitioning: Partitioning, input: int = 0) -> list[EdgeEntry]:
    return [
        ("lines", "split", 0, Partitioning.FORWARD),
        ("split", "score", 0, Partitioning.FORWARD),
        ("score", "split", input, partitioning),
    ]


def test_a_loop_that_is_as_it_was_differs_in_nothing() -> None:
    for partitioning in Partitioning:
        before = looping(3, partitioning)
        assert compare_graph(before, [SOURCE, SPLIT, SCORE], back(partitioning)) == []


def test_a_main_and_a_side_output_may_lead_to_one_input_with_different_partitionings() -> None:
    edges = [*back(Partitioning.FORWARD), *back(Partitioning.HASH), *back(Partitioning.BROADCAST)]
    for partitioning in Partitioning.FORWARD, Partitioning.HASH, Partitioning.BROADCAST:
        assert compare_graph(looping(3, partitioning), [SOURCE, SPLIT, SCORE], edges) == []


def test_records_in_flight_whose_edge_is_gone_would_be_lost() -> None:
    open_graph = [edge for edge in back(Partitioning.HASH) if edge[0] != "score"]
    for operators, edges in (
        ([SOURCE, SPLIT, SCORE], open_graph),
        ([SOURCE, SPLIT, SCORE], back(Partitioning.HASH, input=1)),
        ([SOURCE, SPLIT], open_graph[:1]),
        ([SOURCE, SCORE], []),
    ):
        (difference,) = compare_graph(looping(3), operators, edges)
        assert (difference.uid, difference.verdict) == ("split", Verdict.LOST)
        assert "6 records from 'score' to its input 0 were in flight" in difference.reason
        with pytest.raises(GraphError, match=r"would be lost(?s:.)*put their edges back") as error:
            require_compatible([difference])
        assert "--allow-dropped" not in str(error.value)
        require_compatible([difference], allow_dropped=True)


def test_a_loop_in_which_nothing_was_in_flight_may_go_and_change() -> None:
    assert compare_graph(looping(0), [SOURCE], []) == []
    wider = [SOURCE, replace(SPLIT, parallelism=3), SCORE]
    before = looping(0, Partitioning.BROADCAST)
    assert compare_graph(before, wider, back(Partitioning.HASH)) == []


def test_records_in_flight_are_redistributed_at_another_parallelism() -> None:
    wider = [SOURCE, replace(SPLIT, parallelism=3), SCORE]
    for was in Partitioning:
        for now in Partitioning:
            if Partitioning.BROADCAST not in (was, now):
                assert compare_graph(looping(3, was), wider, back(now)) == []


def test_copies_in_flight_on_a_broadcast_edge_fit_no_other_parallelism() -> None:
    wider = [SOURCE, replace(SPLIT, parallelism=3), SCORE]
    before = looping(3, Partitioning.BROADCAST)
    (difference,) = compare_graph(before, wider, back(Partitioning.BROADCAST))
    assert difference.verdict is Verdict.REFUSED
    assert "cannot be redistributed to 3; set the parallelism to 2" in difference.reason
    with pytest.raises(GraphError, match="broadcast"):
        require_compatible([difference], allow_dropped=True)
    # The producer's does not matter.
    producer = [SOURCE, SPLIT, replace(SCORE, parallelism=3)]
    assert compare_graph(before, producer, back(Partitioning.BROADCAST)) == []


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [
        (Partitioning.FORWARD, Partitioning.REBALANCE, True),
        (Partitioning.HASH, Partitioning.SHUFFLE, True),
        (Partitioning.REBALANCE, Partitioning.HASH, False),
        (Partitioning.HASH, Partitioning.CUSTOM, False),
        (Partitioning.SHUFFLE, Partitioning.GLOBAL, False),
        (Partitioning.BROADCAST, Partitioning.REBALANCE, False),
        (Partitioning.FORWARD, Partitioning.BROADCAST, False),
    ],
)
def test_records_in_flight_must_not_end_up_at_a_subtask_that_is_not_theirs(
    was: Partitioning, now: Partitioning, fits: bool
) -> None:
    found = compare_graph(looping(3, was), [SOURCE, SPLIT, SCORE], back(now))
    assert [item.verdict for item in found] == ([] if fits else [Verdict.REFUSED])
    assert all(f"was {was.value} and is {now.value}" in item.reason for item in found)


# ---- ends of input

#: Handles of the operator "split", some of whose subtasks had run their hooks at the snapshot.
MIDWAY = {
    "the other one has nothing in the snapshot": [OperatorHandle("split", 0, ended=1)],
    "the other one has state": [OperatorHandle("split", 0, ended=1), OperatorHandle("split", 1)],
    "the other one has records in flight, its own and overtaken ones": [
        OperatorHandle("split", 0, ended=1),
        OperatorHandle("split", 1, logs=(LogHandle("lines", 0, 0, "hash", 3, 27, b""),)),
        OperatorHandle("split", 1, logs=(LogHandle("lines", 0, 1, "hash", 3, 27, b""),)),
    ],
    "the other one is a round behind": [
        OperatorHandle("split", 0, ended=2, emitted=True),
        OperatorHandle("split", 1, ended=1, emitted=True),
    ],
}
INTO_SPLIT = [("lines", "split", 0, Partitioning.HASH)]


@pytest.mark.parametrize("handles", MIDWAY.values(), ids=MIDWAY.keys())
def test_a_last_word_that_only_some_subtasks_have_had_fits_no_other_parallelism(
    handles: list[OperatorHandle],
) -> None:
    before = replace(manifest(1, SOURCE, SPLIT), handles=tuple(handles))
    assert compare_graph(before, [SOURCE, SPLIT], INTO_SPLIT) == []
    for parallelism in (1, 3):
        after = [SOURCE, replace(SPLIT, parallelism=parallelism)]
        (difference,) = compare_graph(before, after, INTO_SPLIT)
        assert (difference.uid, difference.verdict) == ("split", Verdict.REFUSED)
        with pytest.raises(GraphError, match=r"end_input has run in some .* at parallelism 2"):
            require_compatible([difference], allow_dropped=True)


def test_a_last_word_that_all_or_none_have_had_fits_any_parallelism() -> None:
    wider = [SOURCE, replace(SPLIT, parallelism=3)]
    for ended in (0, 1):
        # One more handle each, for what was overtaken on its way to the subtask.
        handles = [OperatorHandle("split", i, ended=ended) for i in range(2)]
        handles += [OperatorHandle("split", i) for i in range(2)]
        before = replace(manifest(1, SOURCE, SPLIT), handles=tuple(handles))
        assert compare_graph(before, wider, INTO_SPLIT) == []


@pytest.mark.parametrize(
    ("lines", "split", "fits"),
    [((1, 1), (1, 1), True), ((1, 0), (1, 0), True), ((1, 1), (1, 0), False), ((2,), (0, 0), False)]
    + [((1,), (1, 1), True)],
)
def test_operators_of_which_one_has_had_its_last_word_do_not_become_one_task(
    lines: tuple[int, ...], split: tuple[int, ...], fits: bool
) -> None:
    handles = [OperatorHandle("lines", i, ended=ended) for i, ended in enumerate(lines)]
    handles += [OperatorHandle("split", i, ended=ended) for i, ended in enumerate(split)]
    source = replace(SOURCE, parallelism=len(lines))
    before = replace(manifest(1, source, SPLIT), handles=tuple(handles))
    apart = compare_graph(before, [source, SPLIT], INTO_SPLIT, [["lines"], ["split"]])
    assert apart == []
    found = compare_graph(before, [source, SPLIT], [], [["lines", "new", "split"]])
    assert [(item.uid, item.verdict) for item in found] == (
        [] if fits else [("split", Verdict.REFUSED)]
    )
    assert all("keep them apart as they were" in item.reason for item in found)
