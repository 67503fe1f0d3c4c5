"""The control plane: messages, authenticated connections, errors, and the job's code.

Records take another path (`penstock.runtime.network`), and decisions are made elsewhere
(`penstock.runtime.jobmanager`). Start reading at `messages.py`.
"""
