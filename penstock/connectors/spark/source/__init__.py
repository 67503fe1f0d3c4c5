"""Read Spark tables and streams in a job.

`table_source.py` and `stream_source.py` are the sources. Both pin rows in files (`pin.py`) that
their readers read without a JVM (`pin_reader.py`). For a stream, `query_runner.py` runs the query
in the program, and `batch_folder.py` hands its batches to the job. For users: `docs/spark.md`.
"""
