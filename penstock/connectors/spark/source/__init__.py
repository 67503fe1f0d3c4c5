"""Read Spark tables and streams in a job.

`table_source.py` and `stream_source.py` define the sources. Both write the rows to files, called a
pin (`pin.py`). The readers of the job read these files without a JVM (`pin_reader.py`). For a
stream, `query_runner.py` runs the query in the program, and `batch_folder.py` passes its batches
to the job. The user guide is `docs/guides/spark.md`.
"""
