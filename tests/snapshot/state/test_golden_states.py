"""Snapshots with each kind of state that were written once, and must be readable for ever.

`python -m tests.snapshot.state.test_golden_states FOLDER` writes them, in each form of keyed state.
Those whose name begins with `sqlite` have change files.
"""

import sys
from pathlib import Path

import pytest

from penstock import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from penstock.dataflow.graph.keys import canonical
from penstock.saved.state_parts import find_state, read_part
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.state import KeyedBackend, StateKind
from penstock.snapshot.state.cold.database import DatabaseEngine
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.state.sqlite.database import SQLITE
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store
from tests.runtime.operators.state.states import CODEC, Clock, context_of, with_key
from tests.runtime.operators.state.test_states import Mean
from tests.snapshot.state.backends import ENGINE_IDS, ENGINES, as_rows, drive

GOLDEN = Path(__file__).parents[2] / "golden" / "states"
FORMS = ("inline", "blocks", "rows", "sqlite-blocks", "sqlite-rows")
GROUPS = 16

#: The entries as readers of snapshots show them: state, kind, key, part, value, last use.
ENTRIES = [
    ("list", "list", "b", 0, 1, None),
    ("list", "list", "b", 1, None, None),
    ("list", "list", "b", 2, ("t", [2.5]), None),
    ("map", "map", "b", "x", {"y": 1}, None),
    ("map", "map", "b", ("t", 1), None, None),
    ("map", "map", 7, "x", "seven", None),
    ("mean", "aggregating", "b", None, (5, 2), None),
    ("recent", "map", "b", "page", "/a", 1_000_000),
    ("sum", "reducing", "b", None, 3, None),
    ("timers", "timer", "b", [1500, None, 0], True, None),
    ("value", "value", "b", None, [1, "two"], None),
    ("value", "value", ("c", 1), None, b"\x00", None),
    ("visits", "list", "b", 0, "home", 1_000_000),
    ("windows", "window", "b", [(0, 1000)], 4, None),
]


def expiring(descriptor):
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(60_000).build())
    return descriptor


def states_of(context):
    return {
        "value": context.get_state(ValueStateDescriptor("value")),
        "list": context.get_list_state(ListStateDescriptor("list")),
        "map": context.get_map_state(MapStateDescriptor("map")),
        "sum": context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b)),
        "mean": context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean())),
        "recent": context.get_map_state(expiring(MapStateDescriptor("recent"))),
        "visits": context.get_list_state(expiring(ListStateDescriptor("visits"))),
    }


def backend_in(
    folder: Path, form: str, groups: range = range(GROUPS), engine: DatabaseEngine | None = None
) -> KeyedBackend:
    return KeyedBackend(
        folder=folder,
        codec=CODEC,
        canonical=canonical,
        max_parallelism=GROUPS,
        groups=groups,
        inline_threshold=1 << 16 if form == "inline" else 0,
        engine=engine or (SQLITE if form.startswith("sqlite") else ROCKSDB),
    )


def write(root: Path, form: str) -> None:
    """Writes a snapshot with every kind of state."""
    paths = JobPaths(root / form)
    paths.snapshot(1).mkdir(parents=True)
    backend = backend_in(root / f"work-{form}", form)
    context = with_key(context_of(backend, Clock(1_000_000)), "b")
    states = states_of(context)
    states["value"].update([1, "two"])
    states["list"].add_all([1, None, ("t", [2.5])])
    states["map"].put_all({"x": {"y": 1}, ("t", 1): None, "gone": 1})
    states["map"].remove("gone")
    for number in (1, 2):
        states["sum"].add(number)
    for number in (1, 4):
        states["mean"].add(number)
    states["recent"].put("page", "/a")
    states["visits"].add("home")
    backend.composite_table("windows", StateKind.WINDOW).put(("b", (0, 1000)), 4)
    backend.composite_table("timers", StateKind.TIMER).put(("b", 1500, None, 0), True)
    context.key = ("c", 1)
    states["value"].update(b"\x00")
    context.key = 7
    states["map"].put("x", "seven")
    if form.endswith("rows"):
        as_rows(backend)
    keyed, size = drive(backend.capture(1).write(paths.task(1, "sum", 0, 1)))
    backend.close()
    manifest = Manifest(
        job="states",
        lineage="00c0ffee",
        parent=None,
        number=SnapshotNumber(1),
        kind=SnapshotKind.SAVEPOINT,
        created_ms=1_790_000_000_000,
        attempt=1,
        version="0.3.0",
        fingerprint="5eed",
        operators=(OperatorEntry("sum", "Sum", "keyed_process", 1, GROUPS, True),),
        handles=(OperatorHandle("sum", 0, keyed),),
        sizes=size,
    )
    paths.manifest(1).write_bytes(encode_manifest(manifest))
    paths.job.write_text('{"layout": 1, "job": "states", "created_ms": 1790000000000}')


def keyed_handle(form: str):
    manifest = Store(GOLDEN / form).load(SnapshotNumber(1))
    return manifest.handles[0].keyed


@pytest.mark.parametrize("form", FORMS)
def test_readers_show_the_entries_of_every_kind(form):
    (part,) = find_state(GOLDEN / form)
    found = [
        (entry.state, entry.kind, entry.key, entry.part, entry.value, entry.last_used_ms)
        for entry in read_part(part)
    ]
    assert sorted(found, key=repr) == sorted(ENTRIES, key=repr)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_IDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [range(GROUPS), range(7), range(7, GROUPS)])
def test_every_kind_is_restored_at_any_parallelism_into_each_database(
    tmp_path, form, groups, engine
):
    handle = keyed_handle(form)
    assert (handle.inline is not None) == (form == "inline")
    backend = backend_in(tmp_path, form, groups, engine)
    folder = JobPaths(GOLDEN / form).snapshot(1)
    drive(backend.restore([(folder, handle)]))
    context = context_of(backend, Clock(1_000_001))
    states = states_of(context)
    group_of = backend.storage.row_keys.group
    read = {
        "value": lambda state: state.value(),
        "list": lambda state: state.get(),
        "visits": lambda state: state.get(),
        "map": lambda state: dict(state.items()),
        "recent": lambda state: dict(state.items()),
        "sum": lambda state: state.get(),
        "mean": lambda state: state.get(),
    }
    expected = {
        "b": {
            "value": [1, "two"],
            "list": [1, None, ("t", [2.5])],
            "visits": ["home"],
            "map": {"x": {"y": 1}, ("t", 1): None},
            "recent": {"page": "/a"},
            "sum": 3,
            "mean": 2.5,
        },
        ("c", 1): {"value": b"\x00"},
        7: {"map": {"x": "seven"}},
    }
    for context.key, content in expected.items():
        mine = content if group_of(context.key) in groups else {}
        for name, state in states.items():
            assert (read[name](state) or None) == mine.get(name)
    assert set(backend.keys()) == {key for key in expected if group_of(key) in groups}
    windows = backend.composite_table("windows", StateKind.WINDOW)
    timers = backend.composite_table("timers", StateKind.TIMER)
    here = group_of("b") in groups
    assert dict(windows.entries_of("b")) == ({("b", (0, 1000)): 4} if here else {})
    assert dict(timers.entries_of("b")) == ({("b", 1500, None, 0): True} if here else {})
    backend.close()


if __name__ == "__main__":
    for form in FORMS:
        write(Path(sys.argv[1]), form)
