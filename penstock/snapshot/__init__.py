"""Snapshots: the protocols, the coordinator, keyed state, and the store.

The protocols are sans-IO: events in, an ordered list of commands out. Their driver guarantees:

1. state is copied (`CopyState`) before the barrier is sent (`Broadcast`), and no record is
   processed in between;
2. a task's snapshot is durable, with its files and their folder synced, before it is acknowledged;
3. the manifest is durable before sinks commit (`CompleteSnapshot`);
4. a committable stays in every manifest until its commit has been confirmed.

Start reading at `protocols/aligned.py`, `protocols/aligned_cyclic.py` and
`coordination/coordinator.py`, then `metadata/manifest.py`, `storage/store.py` and
`state/keyed_table.py`.
"""
