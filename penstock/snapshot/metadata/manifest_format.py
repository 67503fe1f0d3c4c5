"""Encode and decode manifests, in the format that `docs/reference/snapshot-format.md` describes.

This module does not open files. The frame (magic, format, length, body, checksum) is the same in
every format. So an old version of Penstock can distinguish a newer manifest from a damaged one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.consistency import require_consistent
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.manifest import FORMAT, Manifest, OperatorEntry, SnapshotNumber
from penstock.snapshot.metadata.plain_values import (
    ALLOWED,
    NOT_PLAIN,
    pack_plain,
    require_plain,
    unpack_plain,
)
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.protocols.events import SnapshotKind

# These values are written to disk, so never change them. If the layout of the body changes,
# increase `FORMAT`, and continue to read the old formats.
MAGIC = b"PENSTOCK"
_HEADER = struct.Struct(">8sIQ")  # magic, format, length of the body in bytes
_CHECKSUM_BYTES = 16


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the encoded bytes of a manifest. Equal manifests have equal bytes.

    Raises:
        JobError: if a value of a source, sink or operator would be decoded as a different value,
            such as a tuple, a set or an object. The error names the operator.
    """
    operators = [
        [
            entry.uid,
            entry.name,
            entry.kind,
            entry.parallelism,
            entry.max_parallelism,
            entry.stateful,
            # Earlier versions of Penstock read manifests without it.
            *([entry.key_version] if entry.key_version != 1 else []),
        ]
        for entry in manifest.operators
    ]
    body = {
        "job": manifest.job,
        "lineage": manifest.lineage,
        "parent": None if manifest.parent is None else list(manifest.parent),
        "number": manifest.number,
        "kind": SnapshotKind(manifest.kind).value,
        "created_ms": manifest.created_ms,
        "attempt": manifest.attempt,
        "version": manifest.version,
        "fingerprint": manifest.fingerprint,
        "operators": operators,
        "handles": [handle.to_wire() for handle in manifest.handles],
        "enumerators": dict(sorted(manifest.enumerators.items())),
        "committables": [[*item.identity, item.payload] for item in manifest.committables],
        "types": [schema.to_wire() for schema in manifest.types],
        "sizes": [manifest.sizes.new, manifest.sizes.linked],
        "finished": manifest.finished,
    }
    try:
        packed = pack_plain(body)
    except NOT_PLAIN as error:
        _require_plain_values(manifest)
        raise JobError(
            f"a value does not fit into a snapshot's manifest ({error}): {ALLOWED}"
        ) from error
    frame = _HEADER.pack(MAGIC, FORMAT, len(packed)) + packed
    return frame + _checksum(frame)


def decode_manifest(data: bytes, path: object) -> Manifest:
    """Return the manifest that `data` contains.

    Arguments:
        data: the content of a manifest file.
        path: the path of the file, for error messages. The file is not opened.

    Raises:
        StoreError: if the data is truncated or altered, is not a manifest, or has a newer format.
    """
    if not data.startswith(MAGIC[: len(data)]):
        raise StoreError("this is not a manifest of Penstock: it begins otherwise", path)
    if len(data) < _HEADER.size:
        raise _truncated(len(data), f"at least {_HEADER.size}", path)
    _, version, length = _HEADER.unpack_from(data)
    expected = _HEADER.size + length + _CHECKSUM_BYTES
    if len(data) < expected:
        raise _truncated(len(data), str(expected), path)
    # Check the checksum before the format. Otherwise a flipped bit in the format's number would
    # look like a manifest of a newer version of Penstock.
    if len(data) > expected or _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
        raise StoreError(
            "the manifest was altered after it was written: its checksum differs; "
            "this snapshot cannot be used, resume from another one",
            path,
        )
    if version > FORMAT:
        raise StoreError(
            f"the manifest has format {version}, and this Penstock reads up to {FORMAT}: "
            "upgrade Penstock to the version that wrote it, or a later one",
            path,
        )
    try:
        body = unpack_plain(data[_HEADER.size : -_CHECKSUM_BYTES])
        manifest = _READERS[version](body, version)
        require_consistent(manifest)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        what = str(error) if type(error) is ValueError else repr(error)[:200]
        raise StoreError(
            f"the manifest is intact, but not what format {version} says ({what}): "
            "it was not written by a release of Penstock",
            path,
        ) from error
    return manifest


def _read(body: dict[str, Any], format: int) -> Manifest:
    parent = body["parent"]
    new, linked = body["sizes"]
    return Manifest(
        job=body["job"],
        lineage=body["lineage"],
        parent=None if parent is None else tuple(parent),
        number=SnapshotNumber(body["number"]),
        kind=SnapshotKind(body["kind"]),
        created_ms=body["created_ms"],
        attempt=body["attempt"],
        version=body["version"],
        fingerprint=body["fingerprint"],
        operators=tuple(OperatorEntry(*entry) for entry in body["operators"]),
        handles=tuple(OperatorHandle.from_wire(wire) for wire in body["handles"]),
        enumerators=body["enumerators"],
        committables=tuple(Committable(*wire) for wire in body["committables"]),
        types=tuple(_read_type(wire) for wire in body["types"]),
        sizes=SnapshotBytes(new, linked),
        finished=body["finished"],
        format=format,
    )


def _read_type(wire: Any) -> RecordSchema:
    # Formats 1 and 2 contain only the name of a record class.
    return RecordSchema(wire) if isinstance(wire, str) else RecordSchema.from_wire(wire)


# All formats have the same reader. Operator handles and keyed handles are shorter in formats 1 to
# 3. Record classes are plain names in formats 1 and 2. The reader accepts all forms.
_Reader = Callable[[dict[str, Any], int], Manifest]
_READERS: dict[int, _Reader] = dict.fromkeys((1, 2, 3, FORMAT), _read)


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def _truncated(found: int, expected: str, path: object) -> StoreError:
    return StoreError(
        f"the manifest is truncated: {found} bytes, expected {expected}; "
        "this snapshot cannot be used, resume from another one",
        path,
    )


def _require_plain_values(manifest: Manifest) -> None:
    for uid, value in manifest.enumerators.items():
        require_plain("enumerator's state", value, uid)
    for item in manifest.committables:
        require_plain("committable's payload", item.payload, item.uid)
    for handle in manifest.handles:
        require_plain("operator's state", handle.small, handle.uid)
