"""Write a snapshot from which a job starts, or edit one into a new lineage.

    with penstock.SnapshotWriter("bootstrap", "orders") as writer:
        accounts = writer.operator("accounts")
        accounts.load("balance", "accounts.parquet", key="user", value="balance")

    $ penstock run JOB.py --resume bootstrap --fork

The state is written by the same backend as that of a running job. So the files are the same, and
state that does not fit into memory is written as rows.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from penstock.dataflow.errors import GraphError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.saved.copying import copy_kept, require_new
from penstock.saved.operator_writer import OperatorWriter
from penstock.saved.snapshot import SavedSnapshot
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry, SnapshotNumber
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.durable_files import sync_path
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.store import Store
from penstock.version import VERSION

_MAX_PARALLELISM = 128


class SnapshotWriter:
    """Writes a snapshot into a new folder, from which a job starts with `--resume PATH --fork`.

    The snapshot is complete when `finish` returns, or when the `with` block ends without an error.
    Otherwise the folder is removed. (Flink: `SavepointWriter` of the State Processor API.)

    Arguments:
        path: the new folder. It must not exist, or be empty.
        job: the name of the job, which the program may change.
        classes: record classes of the values and keys that are written.

    Raises:
        StoreError: if the folder cannot be written, or holds files.

    Examples:
        >>> with SnapshotWriter("bootstrap", "orders") as writer:
        ...     writer.operator("accounts").put("balance", "ada", 7)
        >>> with open_snapshot("bootstrap") as snapshot:
        ...     snapshot.get("accounts", "balance", "ada")
        7
    """

    def __init__(self, path: str | Path, job: str, *, classes: Iterable[type] = ()) -> None:
        lineage = secrets.token_hex(8)
        self._manifest = Manifest(
            job, lineage, None, SnapshotNumber(1), SnapshotKind.SAVEPOINT, _now_ms(), 1, VERSION, ""
        )
        self._begin(Path(path), TypeRegistry(classes), None)

    @classmethod
    def edit(
        cls,
        source: str | Path,
        path: str | Path,
        *,
        number: int | None = None,
        classes: Iterable[type] = (),
    ) -> SnapshotWriter:
        """Return a writer of a copy of a snapshot, in which state is changed before it is written.

        The original is not touched. The copy begins a new lineage, whose parent is the original.
        Subtasks whose state is not changed are linked, or copied to another disk.

        Arguments:
            source: a job's checkpoint folder, or the folder of a snapshot.
            path: the new folder. It must not exist, or be empty.
            number: the number of the snapshot, as for `open_snapshot`.
            classes: record classes of the job. Without them, records are named tuples.

        Raises:
            StoreError: if there is no such snapshot, or the folder cannot be written.
        """
        snapshot = SavedSnapshot(source, number, classes)
        try:
            writer = cls.__new__(cls)
            writer._manifest = replace(
                snapshot.manifest,
                lineage=secrets.token_hex(8),
                parent=(snapshot.manifest.lineage, snapshot.manifest.number),
                kind=SnapshotKind.SAVEPOINT,
                created_ms=_now_ms(),
                attempt=snapshot.manifest.attempt + 1,
                version=VERSION,
            )
            writer._begin(Path(path), snapshot.registry, snapshot)
        except BaseException:
            snapshot.close()
            raise
        return writer

    def _begin(self, target: Path, registry: TypeRegistry, source: SavedSnapshot | None) -> None:
        self._registry, self._source, self._target = registry, source, target
        self._codec = Codec(registry)
        self._operators: dict[str, OperatorWriter] = {}
        self._dropped: set[str] = set()
        self._is_open = False
        self._store = Store(target)
        number = self._manifest.number
        require_new(target)
        self._work = TemporaryFolder("writer")
        try:
            with raising_store_error("write a snapshot", target):
                self._store.open(self._manifest.job)
                self._store.lock()
                self._is_open = True
                if source is not None:
                    copy_kept(source.paths, self._store.paths)
                NumberRecord(FileSystem(), self._store.paths).reserve(1, number)
                self._folder = self._store.create_folder(number)
        except BaseException:
            self.abort()
            raise

    def operator(
        self,
        uid: str,
        kind: str = "keyed_process",
        *,
        name: str | None = None,
        max_parallelism: int = _MAX_PARALLELISM,
    ) -> OperatorWriter:
        """Return the writer of the state of one operator.

        If the snapshot has the operator already, the further arguments are ignored.

        Arguments:
            uid: the uid of the operator in the program.
            kind: the kind of the operator. A job restores state only into an operator of the same
                kind. `penstock snapshots show` lists the kinds of a job.
            name: the name of the operator; its uid by default.
            max_parallelism: the number of key groups, which must be that of the program.
        """
        if uid not in self._operators:
            entry = next((one for one in self._manifest.operators if one.uid == uid), None)
            if entry is None:
                entry = OperatorEntry(uid, name or uid, kind, 1, max_parallelism, True)
                operators = (*self._manifest.operators, entry)
                self._manifest = replace(self._manifest, operators=operators)
            self._operators[uid] = OperatorWriter(
                replace(entry, stateful=True),
                [handle for handle in self._manifest.handles if handle.uid == uid],
                self._codec,
                self._work.path / str(len(self._operators)),
                self._source,
            )
        return self._operators[uid]

    def drop(self, uid: str) -> None:
        """Leave out an operator of the edited snapshot, with its state and its source's position.

        Raises:
            GraphError: if the snapshot has no such operator.
        """
        if all(entry.uid != uid for entry in self._manifest.operators):
            there = ", ".join(entry.uid for entry in self._manifest.operators)
            raise GraphError(f"the snapshot has no operator with the uid {uid!r}; it has {there}")
        self._operators.pop(uid, None)
        manifest = self._manifest
        self._manifest = replace(
            manifest,
            operators=tuple(entry for entry in manifest.operators if entry.uid != uid),
            handles=tuple(handle for handle in manifest.handles if handle.uid != uid),
            enumerators={one: state for one, state in manifest.enumerators.items() if one != uid},
        )

    def finish(self) -> Path:
        """Write the snapshot durably, and return its folder.

        Raises:
            StoreError: if it cannot be written.
            GraphError: if the class of a value was not passed to the writer.
        """
        number, attempt = self._manifest.number, self._manifest.attempt
        handles: list[OperatorHandle] = []
        size = SnapshotBytes()
        try:
            with raising_store_error("write a snapshot", self._folder):
                for handle in self._manifest.handles:
                    if handle.uid not in self._operators:
                        handles.append(handle)
                        size += self._take_over(handle)
                for writer in self._operators.values():
                    for made in writer.write(self._store.paths, number, attempt):
                        handles.append(made.handle)
                        size += made.size
                        for file in made.linked:
                            self._link(file)
                for folder in self._folder.iterdir():
                    if folder.is_dir():
                        sync_path(folder)
            operators = [
                self._operators[entry.uid].entry if entry.uid in self._operators else entry
                for entry in self._manifest.operators
            ]
            manifest = replace(
                self._manifest,
                operators=tuple(operators),
                handles=tuple(handles),
                types=tuple(self._registry.schemas()),
                sizes=size,
            )
            self._store.publish(manifest)
        except UnsupportedTypeError as error:
            self.abort()
            raise GraphError(
                f"a value cannot be written: {error}. Here, a class is passed to the writer: "
                f"classes=[...]"
            ) from error
        except BaseException:
            self.abort()
            raise
        self._close()
        return self._folder

    def _take_over(self, handle: OperatorHandle) -> SnapshotBytes:
        """Link or copy the files of a handle that is not changed."""
        for file in handle.files:
            self._link(file.name)
        return SnapshotBytes(linked=sum(file.size for file in handle.files))

    def _link(self, name: str) -> None:
        assert self._source is not None
        target = self._folder / name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            FileSystem().link_or_copy(self._source.path / name, target)

    def abort(self) -> None:
        """Give the snapshot up, and remove the written files."""
        if self._is_open:
            shutil.rmtree(self._target, ignore_errors=True)
        self._close()

    def _close(self) -> None:
        for writer in self._operators.values():
            writer.close()
        if self._is_open:
            self._is_open = False
            self._store.unlock()
        self._work.remove()
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_open:
            return
        if error is None:
            self.finish()
        else:
            self.abort()


def _now_ms() -> int:
    return int(time.time() * 1000)
