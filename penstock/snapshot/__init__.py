"""Snapshots: the protocols, the coordinator, keyed state, and the snapshot store.

The protocols are sans-IO: an event goes in, and an ordered list of commands comes out. The code
that executes the commands guarantees:

1. A task copies its state (`CopyState`) before it sends the barrier (`Broadcast`). Between the two
   it processes no record.
2. A task acknowledges its task snapshot only when the snapshot is durable: its files and their
   folder are synced.
3. The manifest is durable before sinks commit (`CompleteSnapshot`).
4. A committable stays in every manifest until its commit is confirmed.

Start reading at `protocols/aligned.py`, `protocols/aligned_cyclic.py` and
`coordination/coordinator.py`, then `metadata/manifest.py`, `storage/store.py` and
`state/table/keyed_table.py`.
"""
