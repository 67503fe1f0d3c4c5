"""Store the files of a job's snapshots durably."""
