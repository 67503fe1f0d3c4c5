"""Execute a program: prepare it, start its JobManager, and follow the job."""
