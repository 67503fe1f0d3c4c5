"""Run the tasks of one worker process. (Flink: `TaskManager`.)"""
