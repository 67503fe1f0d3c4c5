"""The uids of operators, and the uids that they had before."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import GraphError, StreamExecutionEnvironment
from penstock.connectors import GeneratorSource
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph


def compiled(*uids: Any, names: tuple[str, str] = ("One", "Two")) -> ExecutionGraph:
    """Return a program with a source, two maps and a sink; the maps have uids and former uids."""
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(GeneratorSource(lambda i: i, count=1)).uid("source")
    for name, (uid, formerly) in zip(names, uids, strict=True):
        stream = stream.map(lambda value: value).name(name)
        if uid is not None:
            stream.uid(uid, formerly=formerly)
    stream.print()
    return compile_graph(env._graph, env._config)


NONE = (None, None)


def test_a_renamed_operator_has_a_former_uid_and_so_have_those_behind_it() -> None:
    before, after = compiled(("old", None), NONE), compiled(("new", "old"), NONE)
    uids = [[info.uid for info in plan.operators] for plan in (before, after)]
    assert uids[0][:2] == ["source", "old"] and uids[1][:2] == ["source", "new"]
    assert len({*uids[0], *uids[1]}) == 7
    assert after.former_uids == dict(zip(uids[0][1:], uids[1][1:], strict=True))
    assert before.former_uids == {}


def test_a_derived_uid_may_be_the_former_one() -> None:
    before = compiled(NONE, ("second", None))
    derived = before.operators[1].uid
    after = compiled(("first", derived), ("second", None))
    assert after.former_uids == {derived: "first"}


@pytest.mark.parametrize(
    ("uids", "message"),
    [
        (
            [("new", "old"), ("old", None)],
            "'old' is given as the former uid of 'One', and is a uid",
        ),
        (
            [("a", "old"), ("b", "old")],
            "'old' is given as the former uid of 'Two', and is a uid of",
        ),
        (
            [("a", "b"), ("b", "a")],
            "'b' is given as the former uid of 'One', and is a uid of 'Two'",
        ),
        ([("a", "a"), NONE], "is the present one"),
        ([("", None), NONE], "a uid is a non-empty string, not ''"),
        ([("a", ""), NONE], "a uid is a non-empty string, not ''"),
        ([("a", 5), NONE], "a uid is a non-empty string, not 5"),
    ],
)
def test_a_former_uid_belongs_to_one_operator(uids: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        compiled(*uids)
