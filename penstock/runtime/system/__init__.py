"""The runtime's clock, connections, processes, threads and limits.

No module here depends on jobs. Start reading at `system.py`.
"""
