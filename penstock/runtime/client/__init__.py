"""The client prepares a program, starts its JobManager, and follows the job.

Start reading at `executor.py`.
"""
