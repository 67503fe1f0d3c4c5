"""Run a job inside the process of its program. (Flink: `MiniCluster`.)"""
