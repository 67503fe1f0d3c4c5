"""Run one job: attempts, snapshots, restarts and commits. (Flink: `JobMaster`.)

`jobmanager.py` runs attempts until the job has ended, and `process.py` is the process around it.
An attempt (`attempt/`) deploys the job on workers and drives its checkpoints. `snapshots/` has the
publishing of snapshots, the commits and the start from a snapshot, `reporting/` events and metrics.
The decisions about snapshots are in `penstock.snapshot.coordination`. Start at `jobmanager.py`.
"""
