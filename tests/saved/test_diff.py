"""Two snapshots are compared, and what they share is not read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import GraphError, open_snapshot
from penstock.cli import main
from penstock.saved import diff
from penstock.saved.diff import compare
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.testing.connectors.nonconformity import require_no_open_files
from tests.snapshot.state.backends import as_rows, drive
from tests.snapshot.state.test_golden_states import FORMS, GOLDEN, GROUPS, backend_in

KEYS = [f"key{number:04d}" for number in range(2000)]


class Job:
    """Takes snapshots of one state, and knows what they hold."""

    def __init__(self, root: Path, form: str, groups=(range(GROUPS),)) -> None:
        self.paths = JobPaths(root)
        self.paths.checkpoints.mkdir(parents=True)
        self.paths.job.write_text('{"layout": 1, "job": "diff", "created_ms": 1}')
        self.form = form
        self.backends: list[KeyedBackend] = [
            backend_in(root / f"work{number}", form, some) for number, some in enumerate(groups)
        ]
        for backend in self.backends:
            backend.table("total")
            if form.endswith("rows"):
                as_rows(backend)
        self.content: dict[str, Any] = {}
        self.snapshots: dict[int, dict[str, Any]] = {}

    def _backend(self, key: str) -> KeyedBackend:
        (backend,) = [one for one in self.backends if one.storage.row_keys.group(key) in one.groups]
        return backend

    def put(self, key: str, value: Any) -> None:
        self._backend(key).table("total").put(key, value)
        self.content[key] = value

    def delete(self, key: str) -> None:
        if self.content.pop(key, None) is not None:
            self._backend(key).table("total").delete(key)

    def announce(self, number: int) -> None:
        """Make a checkpoint before the snapshot, whose log has the later changes."""
        self.paths.snapshot(number).mkdir()
        for subtask, backend in enumerate(self.backends):
            target = self.paths.task(number, "sum", subtask, 1)
            backend.announce_snapshot(number, 0.0, target)
            if backend.wants_preparation:
                drive(backend.prepare_checkpoint())

    def snapshot(self, number: int) -> None:
        self.paths.snapshot(number).mkdir(exist_ok=True)
        handles = []
        for subtask, backend in enumerate(self.backends):
            target = self.paths.task(number, "sum", subtask, 1)
            keyed, _ = drive(backend.capture(number).write(target))
            handles.append(OperatorHandle("sum", subtask, keyed))
        entry = OperatorEntry("sum", "Sum", "keyed_process", len(handles), GROUPS, True)
        manifest = Manifest(
            "diff", "00c0ffee", None, SnapshotNumber(number), SnapshotKind.CHECKPOINT, number, 1,
            "0.3.0", "5eed", operators=(entry,), handles=tuple(handles),
        )  # fmt: skip
        self.paths.manifest(number).write_bytes(encode_manifest(manifest))
        self.snapshots[number] = dict(self.content)

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def expected(old: dict[str, Any], new: dict[str, Any]) -> set[tuple[str, str, Any, Any]]:
    found = set()
    for key in old.keys() | new.keys():
        if key not in old:
            found.add(("added", key, None, new[key]))
        elif key not in new:
            found.add(("removed", key, old[key], None))
        elif old[key] != new[key]:
            found.add(("changed", key, old[key], new[key]))
    return found


def changes(before: Path, after: Path) -> list[tuple[str, str, Any, Any]]:
    with open_snapshot(before) as old, open_snapshot(after) as new:
        return [
            (
                one.kind,
                (one.after or one.before).key,
                one.before and one.before.value,
                one.after and one.after.value,
            )
            for one in compare(old, new)
        ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_difference_of_random_snapshots_is_that_of_their_content(tmp_path, form, deletes, seed):
    rng = random.Random(seed)
    job = Job(tmp_path, form)
    keys = KEYS[:400] if form == "inline" else KEYS
    for key in rng.sample(keys, len(keys) * 3 // 4):
        job.put(key, rng.randrange(1, 9))
    job.snapshot(1)
    for number in (2, 3, 4):
        for key in rng.sample(keys, 30):
            job.put(key, rng.randrange(1, 9))
        if deletes:
            for key in rng.sample(keys, 10):
                job.delete(key)
        job.snapshot(number)
    job.close()
    for before, after in [(1, 2), (2, 3), (1, 4), (4, 2), (3, 3)]:
        found = changes(job.paths.snapshot(before), job.paths.snapshot(after))
        assert len(found) == len(set(found))
        assert set(found) == expected(job.snapshots[before], job.snapshots[after])


@pytest.mark.parametrize("form", FORMS)
def test_a_closed_snapshot_leaves_no_file_open(tmp_path, form):
    job = Job(tmp_path, form)
    for number in (1, 2):
        for key in KEYS:
            job.put(key, number)
        job.snapshot(number)
    job.close()
    require_no_open_files(lambda: changes(job.paths.snapshot(1), job.paths.snapshot(2)))


@pytest.mark.parametrize("form", ["rows", "blocks", "sqlite-rows"])
@pytest.mark.parametrize("deletes", [False, True])
def test_changes_in_the_log_of_an_early_checkpoint_are_found(tmp_path, form, deletes):
    job = Job(tmp_path, form)
    for key in KEYS:
        job.put(key, 0)
    job.snapshot(1)
    for number in (2, 3):
        job.announce(number)
        job.put(KEYS[number], number)
        if deletes:
            job.delete(KEYS[number + 10])
        job.snapshot(number)
    job.close()
    if form != "blocks":
        assert list(job.paths.snapshot(3).rglob("*.log" if form == "rows" else "*.changes"))
    for before, after in [(1, 2), (2, 3), (3, 1)]:
        found = changes(job.paths.snapshot(before), job.paths.snapshot(after))
        assert set(found) == expected(job.snapshots[before], job.snapshots[after])
        assert len(found) == (after - before if before < after else 2) * (2 if deletes else 1)


@pytest.mark.parametrize("form", ["rows", "inline"])
def test_snapshots_of_different_parallelism_and_form_are_compared(tmp_path, form):
    one = Job(tmp_path / "one", "rows", [range(5), range(5, GROUPS)])
    other = Job(tmp_path / "other", form)
    for number, key in enumerate(KEYS[:300]):
        one.put(key, number)
        other.put(key, number + (number % 50 == 0))
    other.put("new", 1)
    one.snapshot(1)
    other.snapshot(1)
    one.close()
    other.close()
    found = changes(tmp_path / "one", tmp_path / "other")
    assert set(found) == expected(one.content, other.content) and len(found) == 7


def test_shared_files_are_not_read(tmp_path, monkeypatch):
    job = Job(tmp_path, "rows", [range(5), range(5, GROUPS)])
    for key in KEYS:
        job.put(key, 0)
    job.snapshot(1)
    changed = next(key for key in KEYS if job.backends[1].storage.row_keys.group(key) >= 5)
    job.put(changed, 1)
    job.snapshot(2)
    job.close()
    with open_snapshot(tmp_path, 1) as old, open_snapshot(tmp_path, 2) as new:
        looked_up: list[Any] = []
        rows = diff._rows
        monkeypatch.setattr(diff, "_of_handle", None)  # nothing is compared as a whole
        monkeypatch.setattr(diff, "_rows", lambda *a: looked_up.append(a[3]) or rows(*a))
        (only,) = compare(old, new)
        assert (only.kind, only.before.value, only.after.value) == ("changed", 0, 1)
        # One key is looked up in the first snapshot only; the second has it in its newest file.
        assert [len(keys) for keys in looked_up] == [1, 1]
        assert len(old._keyed) == len(new._keyed) == 0


@pytest.mark.parametrize("form", FORMS)
def test_each_kind_of_state_is_compared(form):
    assert changes(GOLDEN / form, GOLDEN / form) == []
    with open_snapshot(GOLDEN / "inline") as old, open_snapshot(GOLDEN / form) as new:
        assert list(compare(old, new)) == []
        with pytest.raises(GraphError, match="neither snapshot holds a state 'x' of 'sum'"):
            compare(old, new, "sum", "x")


def test_the_command_shows_the_differences(tmp_path):
    job = Job(tmp_path, "rows")
    for key in KEYS[:5]:
        job.put(key, 0)
    job.snapshot(1)
    job.put("key0001", 7)
    job.put("new", 1)
    job.delete("key0003")
    job.snapshot(2)
    job.close()

    def run(*arguments: object, code: int = 1) -> str:
        result = CliRunner().invoke(main, ["snapshots", "diff", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.output

    first, second = job.paths.snapshot(1), job.paths.snapshot(2)
    lines = run(first, second).splitlines()
    assert sorted(lines[:3]) == [
        '+ sum total "new": 1',
        '- sum total "key0003": 0',
        '~ sum total "key0001": 0 -> 7',
    ]
    assert lines[3:] == ["sum total: 1 added, 1 changed, 1 removed"]
    assert run(first, 2, "--summary").splitlines() == lines[3:]
    rows = [json.loads(line) for line in run(first, second, "--json").splitlines()]
    assert {(row["kind"], row["before"], row["after"]) for row in rows} == {
        ("added", None, 1),
        ("removed", 0, None),
        ("changed", 0, 7),
    }
    assert run(second, second, code=0) == "no differences\n"
    assert "there is no such folder" in run(first, tmp_path / "nothing")
