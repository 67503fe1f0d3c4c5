"""Parts of an earlier snapshot are linked into a new one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.storage.store import Store
from tests.snapshot.storage.test_store import with_file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "words")
    made.open("words")
    made.lock()
    yield made
    made.unlock()


def _one(store: Store) -> Manifest:
    """A snapshot with one file."""
    found = with_file(1, b"some keys", store)
    return replace(found, handles=found.handles[1:])


def test_parts_of_an_earlier_snapshot_are_carried_over_into_a_new_one(store: Store) -> None:
    store.create_folder(1)
    before = _one(store)
    store.publish(before)
    store.create_folder(2)
    # Two handles may name the same file.
    store.carry_over((*before.handles, *before.handles), 1, 2)
    store.publish(replace(before, number=SnapshotNumber(2)))
    store.retain(1)
    newest = store.newest()
    assert newest is not None and newest.number == 2
    store.verify(newest, checksums=True)
    assert not store.paths.snapshot(1).exists()


def test_a_file_that_cannot_be_carried_over_is_named(store: Store) -> None:
    store.create_folder(1)
    before = _one(store)
    shutil.rmtree(store.paths.task(1, "count", 0, 1))
    store.create_folder(2)
    with pytest.raises(StoreError, match="cannot publish snapshot 2"):
        store.carry_over(before.handles, 1, 2)
