"""Send metrics, traces of snapshots, and lineage of jobs to collectors.

Both exporters are `JobObserver`s: they see the events of each job, as the HTTP API does. They send
from threads of their own. A collector that is slow or gone never delays a job: what cannot be sent
is dropped, counted and reported.
"""
