"""A snapshot of a harness, from which other harnesses start."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from pathlib import Path

from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder


class HarnessFolder:
    """A temporary folder that is removed when no harness and no snapshot refers to it."""

    def __init__(self) -> None:
        folder = TemporaryFolder("harness")
        self.path: Path = folder.path
        weakref.finalize(self, folder.remove)


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state of all operators of a harness. (Flink: `OperatorSubtaskState`.)

    Arguments:
        manifest: describes the state, as the manifest of a job does.
        folder: the folder with the files of large state.
        code: the program as bytes, with the functions as they were before their first record;
            None if they cannot be sent to another process.
        processing_time: the processing time of the harness, in milliseconds since the epoch.

    Examples:
        >>> harness = OperatorHarness(lambda words: words.key_by(str).count())
        >>> harness.process_element("a")
        >>> restored = OperatorHarness.restore(harness.snapshot(), parallelism=2)
        >>> restored.process_element("a")
        >>> restored.extract_output_values()
        [('a', 2)]
    """

    manifest: Manifest = field(repr=False)
    folder: HarnessFolder = field(repr=False)
    code: bytes | None = field(repr=False)
    processing_time: int

    @property
    def number(self) -> int:
        """The number of the snapshot."""
        return self.manifest.number
