"""The state of an operator gets other keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock import GraphError, SnapshotWriter, open_snapshot
from penstock.saved.diff import compare
from penstock.snapshot.metadata.handles import LogHandle
from tests.saved.test_snapshot_writer import run
from tests.snapshot.state.test_golden_states import FORMS, GOLDEN


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_goes_on_with_other_keys_exactly_once(tmp_path, parallelism):
    users = ["Ada", "ADA", "bob", "Cy", "cy", "cY"]
    records = [(users[n % 6], n) for n in range(120)]
    run(tmp_path / "job", records, parallelism=2)

    def merge(state: str, one: Any, other: Any) -> Any:
        assert state in ("balance", "pages")
        return one + other

    with SnapshotWriter.edit(tmp_path / "job", tmp_path / "edited") as writer:
        bank = writer.operator("bank")
        bank.add_timer("bob", 5)
        bank.add_timer("Cy", 7)
        bank.add_timer("cY", 7)
        assert bank.rekey(str.lower, merge) == 4 * 3 + 2, "value, list and map; timers"
        writer.drop("records")  # the source begins again
    more = [("ada", 1000), ("bob", 1000), ("cy", 1000)]
    out = run(tmp_path / "fork", more, tmp_path / "edited", parallelism)
    timers = [one for one in out if one[1] == "timer"]
    assert sorted(timers) == [("bob", "timer", 5, None), ("cy", "timer", 7, None)]
    counted = [one for one in out if one[1] != "timer"]
    assert [one[0] for one in counted] == ["ada", "bob", "cy"]
    for user, balance, seen, pages in counted:
        amounts = [amount for name, amount in (*records, *more) if name.lower() == user]
        assert sorted(seen) == sorted(amounts) and seen[-1] == 1000
        assert balance == sum(amounts) and pages == {"/": len(amounts)}


@pytest.mark.parametrize("form", FORMS)
def test_keys_that_move_and_come_back_change_nothing(tmp_path, form):
    with SnapshotWriter.edit(GOLDEN / form, tmp_path / "edited") as writer:
        operator = writer.operator("sum")
        moved = operator.rekey(lambda key: ("moved", key))
        assert moved == operator.rekey(lambda key: key[1]) > 10
    with open_snapshot(GOLDEN / form) as old, open_snapshot(tmp_path / "edited") as new:
        assert list(compare(old, new)) == []
        assert new.verify()["entries"] == old.verify()["entries"]
        before, after = (one.manifest.handles[0].keyed for one in (old, new))
        assert dict(zip(before.states, before.kinds, strict=True)) == dict(
            zip(after.states, after.kinds, strict=True)
        )
        for ids in ("expiring", "late"):
            names = [{one.states[id] for id in getattr(one, ids)} for one in (before, after)]
            assert names[0] == names[1]


def test_state_beyond_memory_gets_other_keys(tmp_path):
    with SnapshotWriter(tmp_path / "first", "bank") as writer:
        writer.operator("bank").put_all("balance", ((f"u{n}", "x" * 50) for n in range(5_000)))
    with SnapshotWriter.edit(tmp_path / "first", tmp_path / "edited") as writer:
        moved = writer.operator("bank").rekey(lambda key: int(key[1:]) // 2, lambda _, a, b: a + b)
        assert moved == 5_000
    with open_snapshot(tmp_path / "edited") as snapshot:
        assert {one.key for one in snapshot.entries("bank", "balance")} == {*range(2_500)}
        assert snapshot.get("bank", "balance", 2_499) == "x" * 100


def test_what_cannot_get_other_keys_is_refused(tmp_path):
    with SnapshotWriter(tmp_path / "first", "bank") as writer:
        writer.operator("bank").put_all("balance", [("Ada", 1), ("ada", 2)])
    with SnapshotWriter.edit(tmp_path / "first", tmp_path / "second") as writer:
        bank = writer.operator("bank")
        with pytest.raises(GraphError, match="'Ada' and 'ada' become 'ada', and the state"):
            bank.rekey(str.lower)
        log = LogHandle("source", 0, 0, "hash", records=1, size=1, inline=b"")
        bank._handles = [replace(bank._handles[0], logs=(log,))]
        with pytest.raises(GraphError, match="records in flight to 'bank', which have the old"):
            bank.rekey(str.lower, lambda _, a, b: a + b)
        bank._handles = [replace(bank._handles[0], logs=())]
    with open_snapshot(tmp_path / "first") as old, open_snapshot(tmp_path / "second") as new:
        assert list(compare(old, new)) == [], "what was refused has changed nothing"
