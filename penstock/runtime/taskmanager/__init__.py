"""Run the tasks of one worker. (Flink: `TaskManager`.)

`taskmanager` is the worker as the JobManager sees it; start reading there. It deploys what a
`deployment_descriptor` describes: `channel_factory` and `task_factory` create the channels and
tasks, `data_connections` connects them with other workers, and `state_restorer` restores them.
Then a `task_runner` drives each task, and `task_slot` executes the JobManager's messages on them.
`process` is the main function of a worker process.
"""
