"""Take jobs as a service and start a JobManager for each. (Flink: `Dispatcher`.)"""
