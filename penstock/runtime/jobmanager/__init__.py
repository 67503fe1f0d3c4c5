"""Run one job: its attempts, snapshots, restarts and commits. (Flink: `JobManager`.)"""
