"""The runtime's clock, connections, processes, threads and limits.

Nothing here knows jobs. Start reading at `system.py`.
"""
