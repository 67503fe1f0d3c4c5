"""The control plane: messages, connections, errors and the job's code.

All connections are authenticated. The modules of `penstock.runtime.network` send the records, and
`penstock.runtime.jobmanager` makes the decisions. Start reading at `messages.py`.
"""
