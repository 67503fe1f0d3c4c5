"""Run the tasks of one worker. (Flink: `TaskManager`.)

Start reading at `taskmanager`, which talks to the JobManager. It deploys the tasks of a
`deployment_descriptor`: `channel_factory` and `task_factory` create the channels and tasks,
`data_connections` connects them with other workers, and `state_restorer` restores their state.
Then a `task_runner` runs each task. `task_slot` executes the JobManager's messages on the tasks.
`process` has the main function of a worker process.
"""
