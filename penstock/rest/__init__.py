"""Serve the operations on jobs as HTTP and JSON, and their metrics. (Flink: the REST API.)

`routes.py` lists the endpoints, and `openapi.py` describes them. `views` turn the state of a job
into JSON, under Flink's names where Flink has them. `operations.py` is what an owner of jobs must
offer. These modules know no HTTP library. `application.py` connects them to Starlette, and
`server.py` serves the application.
"""
