"""The control plane: messages, connections, errors and the job's code.

Connections are authenticated. Records are sent by `penstock.runtime.network`, and
`penstock.runtime.jobmanager` makes the decisions. Start reading at `messages.py`.
"""
