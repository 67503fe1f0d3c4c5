"""Give the operators of a snapshot the uids that they have in the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.dataflow.errors import GraphError
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest


def with_present_uids(manifest: Manifest, former: Mapping[str, str]) -> Manifest:
    """Return a manifest in which renamed operators have their present uids.

    Committables keep the uid of the sink that has staged them, because sinks name their output by
    it. So output that was published under the former uid is recognised.

    Arguments:
        manifest: the manifest of the snapshot that is restored.
        former: the present uid of each renamed operator of the program, keyed by its former uid.

    Raises:
        GraphError: if the snapshot has state of the operator with the former uid, and an operator
            with the new one.
    """
    entries = {entry.uid: entry for entry in manifest.operators}
    uids = {}
    for old, new in former.items():
        if old not in entries:
            continue
        if new not in entries:
            uids[old] = new
        elif entries[old].stateful:
            raise GraphError(
                f"the snapshot has both an operator {new!r} and an operator {old!r}, so the latter "
                f"is not the former uid of the first: take it out of uid({new!r}, formerly=...)"
            )
    if not uids:
        return manifest
    return replace(
        manifest,
        operators=tuple(
            replace(entry, uid=uids.get(entry.uid, entry.uid)) for entry in manifest.operators
        ),
        handles=tuple(_renamed(handle, uids) for handle in manifest.handles),
        enumerators={uids.get(uid, uid): state for uid, state in manifest.enumerators.items()},
    )


def _renamed(handle: OperatorHandle, uids: Mapping[str, str]) -> OperatorHandle:
    logs = tuple(replace(log, producer=uids.get(log.producer, log.producer)) for log in handle.logs)
    return replace(handle, uid=uids.get(handle.uid, handle.uid), logs=logs)
