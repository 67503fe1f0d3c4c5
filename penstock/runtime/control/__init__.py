"""The control plane: messages, authenticated connections, processes, and the job's code.

Not the data path (`penstock.runtime.task.task` and what it uses) and not the decisions
(`penstock.runtime.jobmanager.jobmanager`). Start reading at `messages.py`.
"""
