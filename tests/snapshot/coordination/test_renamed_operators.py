"""The operators of a snapshot get the uids that they have in the program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.dataflow.errors import GraphError
from penstock.snapshot.coordination.renamed_operators import with_present_uids
from tests.snapshot.metadata.test_manifest_format import GOLDEN_4


def test_all_that_refers_to_an_operator_is_renamed() -> None:
    former = {"lines": "source", "count": "counts", "größe/äöü": "sink", "unknown": "other"}
    renamed = with_present_uids(GOLDEN_4, former)
    assert [entry.uid for entry in renamed.operators] == ["source", "split", "counts", "sink"]
    assert {handle.uid for handle in renamed.handles} <= {"source", "split", "counts", "sink"}
    logs = [log.producer for handle in renamed.handles for log in handle.logs]
    assert logs == [
        former.get(log.producer, log.producer) for handle in GOLDEN_4.handles for log in handle.logs
    ]
    assert set(renamed.enumerators) == {"source", "ticks"}
    # Published output is known by the uid under which it was staged.
    assert renamed.committables == GOLDEN_4.committables
    back = {new: old for old, new in former.items()}
    assert with_present_uids(renamed, back) == GOLDEN_4


def test_a_snapshot_that_has_the_present_uids_stays_as_it_is() -> None:
    assert with_present_uids(GOLDEN_4, {"old": "count"}) is GOLDEN_4


def test_two_operators_do_not_become_one() -> None:
    with pytest.raises(GraphError, match="has both an operator 'count' and an operator 'lines'"):
        with_present_uids(GOLDEN_4, {"lines": "count"})
    first, *others = GOLDEN_4.operators
    stateless = replace(GOLDEN_4, operators=(replace(first, stateful=False), *others))
    assert with_present_uids(stateless, {"lines": "count"}) is stateless
