"""Composite tables: the entries of a key, in every level, in rows and at another parallelism."""

import random

import pytest

from penstock.dataflow.errors import GraphError, ProtocolError
from penstock.snapshot.state import MISSING, StateKind
from penstock.snapshot.state.dense_layout import DenseLayout
from tests.snapshot.state.backends import as_rows, contents, drive

KEYS = ["a", "b", 1, None, ("t", 2)]


def entries_of(table, key):
    entries = list(table.entries_of(key))
    assert len(entries) == len(dict(entries)), "an entry occurs twice"
    return dict(entries)


def test_the_entries_of_a_key_are_found_in_all_levels(make):
    backend = make()
    table = backend.composite_table("m")
    for part in range(3):
        for key in KEYS:
            table.put((key, part), part)
        backend.capture(part)
    table.put(("a", 3), 3)
    table.delete(("a", 0))
    table.put(("b", 1), "again")
    assert entries_of(table, "a") == {("a", 1): 1, ("a", 2): 2, ("a", 3): 3}
    assert entries_of(table, "b") == {("b", 0): 0, ("b", 1): "again", ("b", 2): 2}
    assert entries_of(table, "c") == {}
    assert table.has_entries("a") and not table.has_entries("c")
    table.clear("a")
    assert entries_of(table, "a") == {} and not table.has_entries("a")
    table.dirty["a", 1] = "back"
    assert entries_of(table, "a") == {("a", 1): "back"}
    assert sorted(map(str, backend.keys())) == sorted(map(str, KEYS))


def test_entries_may_change_while_they_are_listed(make):
    table = make().composite_table("m")
    for part in range(10):
        table.put(("a", part), part)
    seen = []
    for _, value in table.entries_of("a"):
        seen.append(value)
        table.delete(("a", 9 - value))
        table.put(("a", value + 100), value)
    assert seen == [0, 1, 2, 3, 4]


def test_entries_belong_to_the_key_group_of_their_key(make):
    backend = make(inline_threshold=0)
    backend.table("plain").put("a", 1)
    table = backend.composite_table("m")
    for key in KEYS:
        for part in range(20):
            table.put((key, part, "x"), part)
    plain = make.snapshot(as_rows(backend), 1)
    for state in (make.restored(plain), backend):
        found = entries_of(state.composite_table("m"), "b")
        assert found == {("b", part, "x"): part for part in range(20)}
    group = backend.storage.row_keys.group("a")
    assert backend.storage.row_keys.group(("a", 7), is_composite=True) == group


@pytest.mark.parametrize("form", ["inline", "blocks", "rows"])
def test_all_entries_of_a_key_go_to_one_subtask(make, form):
    backend = make(inline_threshold=1 << 20 if form == "inline" else 0)
    table = backend.composite_table("m")
    expected = {(f"k{i % 50}", i): [i] for i in range(500)}
    for entry, value in expected.items():
        table.put(entry, value)
    if form == "rows":
        as_rows(backend)
    handle = make.snapshot(backend, 1)
    assert (handle.inline is not None) == (form == "inline")
    parts = [make.restored(handle, groups=range(5)), make.restored(handle, groups=range(5, 16))]
    whole = [contents(part, "m") for part in parts]
    assert {**whole[0], **whole[1]} == expected and len(whole[0]) + len(whole[1]) == 500
    assert not {key for key, _ in whole[0]} & {key for key, _ in whole[1]}
    for part, entries in zip(parts, whole, strict=True):
        for key in {key for key, _ in entries}:
            found = entries_of(part.composite_table("m"), key)
            assert found == {e: v for e, v in expected.items() if e[0] == key}
    again = make.restored(*(make.snapshot(part, 2) for part in parts))
    assert contents(again, "m") == expected
    assert again.tables.named("m").kind is StateKind.MAP


def test_one_name_with_two_kinds_is_refused(make):
    backend = make()
    backend.composite_table("m").put(("a", 1), 1)
    with pytest.raises(GraphError, match="'m' is a value state, but there is a map state"):
        backend.table("m")
    restored = make.restored(make.snapshot(backend, 1))
    with pytest.raises(GraphError, match=r"'m' is a list state.*another name"):
        restored.composite_table("m", StateKind.LIST)
    with pytest.raises(ProtocolError, match="not composite"):
        backend.composite_table("v", StateKind.VALUE)


def test_what_was_listed_counts_as_memory(make):
    backend = make()
    table = backend.composite_table("m")
    for part in range(1000):
        table.put(("a", part), part)
    before = table.memory_bytes()
    assert len(entries_of(table, "a")) == 1000
    assert table.memory_bytes() > before + 50_000


@pytest.mark.parametrize("seed", range(12))
def test_entries_are_those_of_a_dict_whatever_happens(make, seed):
    rng = random.Random(seed)
    budget = rng.choice([4_000, 1 << 30])
    backend = make(inline_threshold=rng.choice([0, 500, 1 << 20]), memory_budget=budget)
    table, model = backend.composite_table("m"), {}
    number, pending = 0, []
    for _ in range(600):
        action = rng.random()
        key, part = rng.choice(KEYS), rng.randrange(12)
        if action < 0.4:
            value = rng.choice([part, [part], "x" * part])
            table.put((key, part), value)
            model[key, part] = list(value) if isinstance(value, list) else value
        elif action < 0.55:
            table.delete((key, part))
            model.pop((key, part), None)
        elif action < 0.6:
            table.clear(key)
            model = {entry: value for entry, value in model.items() if entry[0] != key}
        elif action < 0.75:
            mine = {entry: value for entry, value in model.items() if entry[0] == key}
            assert table.has_entries(key) == bool(mine)
            found = entries_of(table, key)
            assert found == mine
            for entry, value in found.items():
                if isinstance(value, list):
                    value.append(part)
                    model[entry].append(part)
        elif action < 0.8:
            assert table.get((key, part)) == model.get((key, part), MISSING)
        elif action < 0.88 and len(pending) < 3:
            number += 1
            frozen = {e: list(v) if isinstance(v, list) else v for e, v in model.items()}
            pending.append((backend.capture(number), frozen))
        elif action < 0.94 and pending:
            snapshot, expected = pending.pop(0)
            if rng.random() < 0.3:
                snapshot.abort()
            done = drive(snapshot.write(make.root / f"{number}-{rng.random()}"))
            if done and rng.random() < 0.3:
                assert contents(make.restored(done[0]), "m") == expected
        elif action < 0.97 and not pending:
            drive(backend.evict())
        elif not pending:
            drive(backend.flush_eagerly())
    assert contents(backend, "m") == model
    if table._index is not None and not pending:
        # Nothing is kept in the index that is neither dirty nor clean.
        drive(backend.capture(number + 1).write(make.root / "last"))
        indexed = {entry for entries in table._index.values() for entry in entries}
        assert indexed <= table.dirty.keys() | table.clean.keys()


def test_a_dense_table_may_be_composite(make):
    backend = make(inline_threshold=0)
    table = backend.composite_table("m")
    table.declare_immutable()
    model = {}
    for number in range(1, 9):
        for key in KEYS:
            for part in range(20 + number):
                table.dirty[key, part] = model[key, part] = number * part
        snapshot = backend.capture(number)
        assert entries_of(table, "b") == {e: v for e, v in model.items() if e[0] == "b"}
        handle = drive(snapshot.write(make.root / f"{number}"))[0]
        assert contents(make.restored(handle), "m") == model
    assert any(isinstance(layout, DenseLayout) for layout in backend.tables.layouts)
    for number in range(9, 12):
        table.allow_mutable()
        table.delete(("a", number))
        del model["a", number]
        handle = drive(backend.capture(number).write(make.root / f"{number}"))[0]
        assert entries_of(table, "a") == {e: v for e, v in model.items() if e[0] == "a"}
        assert contents(make.restored(handle), "m") == model


def test_entries_that_are_put_after_others_were_flushed_are_listed(make):
    table = make().composite_table("m")
    first, second = ("a", 1), ("a", 2)
    table.put(first, 1)
    table.put(second, 2)
    assert len(entries_of(table, "a")) == 2
    table.absorb([first, second], [1, 2], marked=False)
    table.forget_dirty([first, second])
    table.put(("a", 3), 3)
    table.put(second, "again")
    assert entries_of(table, "a") == {first: 1, second: "again", ("a", 3): 3}
