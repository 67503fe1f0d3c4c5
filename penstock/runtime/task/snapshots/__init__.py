"""The snapshots of a task: capture, writing in the background, and replay.

`snapshot_driver` executes the commands of the protocol. `state_capture` captures the state as a
`task_snapshot`. `checkpoint_writer` writes the task snapshot between batches, with a
`task_snapshot_writer`, and acknowledges it. `in_flight_data` logs the records that are in flight,
and `log_replay` replays them.
"""
