"""A task's part in snapshots: capture at the barrier, writing in the background, and replay.

The path of a snapshot: `snapshot_driver` executes the commands of the protocol. `state_capture`
captures the state as a `task_snapshot`. `checkpoint_writer` writes it between records, by
`task_snapshot_writer`, and acknowledges it. `in_flight_data` and `log_replay` log and replay the
records that were in flight.
"""
