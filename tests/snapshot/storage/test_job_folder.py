"""The folder of a job is created, or the error says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import StoreError
from penstock.snapshot.storage.store import Store


def test_a_checkpoint_folder_that_cannot_be_created_is_named_with_its_parent() -> None:
    with pytest.raises(StoreError, match=r"/proc takes no new folders; .* \[/proc/penstock\]"):
        Store(Path("/proc/penstock")).open("numbers")
