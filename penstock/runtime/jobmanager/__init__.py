"""Run one job: attempts, snapshots, restarts and commits. (Flink: `JobMaster`.)

`jobmanager.py` runs attempts until the job has ended, and `process.py` is the JobManager's process.
An attempt (`attempt/`) deploys the job on workers and drives its checkpoints. `snapshots/`
publishes and restores snapshots and commits output. `reporting/` handles events and metrics.

The decisions about snapshots are in `penstock.snapshot.coordination`. Start at `jobmanager.py`.
"""
