"""Take jobs as a service and start a JobManager for each. (Flink: `Dispatcher`.)

`dispatcher.py` answers requests, a `JobRunner` runs each job, and the registry keeps the jobs'
records.
"""
