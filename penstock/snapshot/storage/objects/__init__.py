"""Keep the snapshots of a job in an object store, besides the job's local folder."""
