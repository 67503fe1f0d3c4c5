"""List the endpoints of the HTTP API, with their handlers and descriptions."""

from __future__ import annotations

from typing import Any

from penstock.rest.endpoint import ApiCall, Endpoint, Parameter
from penstock.rest.json_schema import BOOLEAN, STRING, Schema, array, described, record, ref
from penstock.rest.measurements import job_measurements, vertex_measurements
from penstock.rest.operations import RefusedRequest, require_running
from penstock.rest.views import checkpoints, edges, figures, jobs, metrics, state, vertices
from penstock.runtime.control.job_state import SnapshotRequest

_GET = Parameter("get", STRING, "ids of metrics, separated by commas; without it, all ids")


async def _overview(call: ApiCall) -> Any:
    owner = call.operations
    return jobs.overview(owner.jobs(), owner.slots(), owner.free_slots())


async def _server(call: ApiCall) -> Any:
    return jobs.server(call.may_order, call.operations.takes_jobs)


async def _figures(call: ApiCall) -> Any:
    return figures.figures(call.job)


async def _jobs(call: ApiCall) -> Any:
    return jobs.job_ids(call.operations.jobs())


async def _jobs_overview(call: ApiCall) -> Any:
    return jobs.jobs_overview(call.operations.jobs())


async def _job(call: ApiCall) -> Any:
    return jobs.job(call.job)


async def _plan(call: ApiCall) -> Any:
    return jobs.plan(call.job)


async def _config(call: ApiCall) -> Any:
    return jobs.config(call.job)


async def _status(call: ApiCall) -> Any:
    return jobs.status(call.job)


async def _exceptions(call: ApiCall) -> Any:
    return jobs.exceptions(call.job)


async def _job_metrics(call: ApiCall) -> Any:
    return metrics.metric_list(job_measurements(call.job), call.query.get("get"))


def _found_vertex(call: ApiCall) -> dict[str, Any]:
    return vertices.find_vertex(call.job, call.number("vertexid", "vertex"))


async def _vertex(call: ApiCall) -> Any:
    return vertices.vertex(call.job, _found_vertex(call))


async def _backpressure(call: ApiCall) -> Any:
    return vertices.backpressure(call.job, _found_vertex(call))


async def _watermarks(call: ApiCall) -> Any:
    return vertices.watermarks(call.job, _found_vertex(call))


async def _vertex_metrics(call: ApiCall) -> Any:
    found = vertex_measurements(call.job, _found_vertex(call))
    return metrics.metric_list(found, call.query.get("get"))


async def _subtask_metrics(call: ApiCall) -> Any:
    found = vertex_measurements(call.job, _found_vertex(call))
    return metrics.aggregated(found, call.query.get("get"))


async def _checkpoints(call: ApiCall) -> Any:
    return checkpoints.checkpoints(call.job)


async def _checkpoint_config(call: ApiCall) -> Any:
    return checkpoints.checkpoint_config(call.job)


async def _checkpoint(call: ApiCall) -> Any:
    return checkpoints.checkpoint(call.job, call.number("checkpointid", "snapshot"))


async def _checkpoint_subtasks(call: ApiCall) -> Any:
    number = call.number("checkpointid", "snapshot")
    return checkpoints.checkpoint_subtasks(call.job, number, _found_vertex(call))


async def _states(call: ApiCall) -> Any:
    return await call.operations.state_names(call.job)


async def _edge_records(call: ApiCall) -> Any:
    job, body = call.job, call.body
    require_running(job)
    answer = await call.operations.sample_edge(
        job, call.path["edge"], body.get("limit", 20), float(body.get("seconds", 1))
    )
    return edges.edge_records(answer)


async def _state(call: ApiCall) -> Any:
    job, live = call.job, call.query.get("live", False)
    request = state.state_request(call.path, call.query)
    if live:
        require_running(job)
    return await call.operations.query_state(job, request, live)


# ---- orders


async def _submit(call: ApiCall) -> Any:
    body = call.body
    job = await call.operations.submit(
        body["path"], body.get("options", []), body.get("arguments", []), body.get("folder", "")
    )
    return {"jobid": job.id}


async def _cancel(call: ApiCall) -> Any:
    job = call.job
    require_running(job)
    await call.operations.cancel(job)
    return {}


async def _stop(call: ApiCall) -> Any:
    if call.body.get("drain"):
        raise RefusedRequest(
            400, "a stop does not drain: the records in flight belong to the final snapshot"
        )
    job = call.job
    require_running(job)
    return _trigger(await call.operations.stop(job, call.body.get("targetDirectory")))


async def _savepoint(call: ApiCall) -> Any:
    job, target = call.job, call.body.get("target-directory")
    require_running(job)
    if call.body.get("cancel-job"):
        return _trigger(await call.operations.stop(job, target))
    return _trigger(await call.operations.savepoint(job, target))


def _trigger(request: SnapshotRequest) -> dict[str, str]:
    return {"request-id": request.id}


async def _snapshot_request(call: ApiCall) -> Any:
    job, id = call.job, call.path["triggerid"]
    request = job.requests.get(id)
    if request is None:
        raise RefusedRequest(404, f"job {job.id} has no request {id}")
    return checkpoints.snapshot_request(request)


async def _rescale(call: ApiCall) -> Any:
    job = call.job
    require_running(job)
    parallelism, limit = call.body["parallelism"], job.graph["max_parallelism"]
    if limit and parallelism > limit:
        raise RefusedRequest(
            400, f"the parallelism of job {job.id} is at most {limit}, its maximum parallelism"
        )
    await call.operations.rescale(job, parallelism)
    return {}


async def _profile(call: ApiCall) -> Any:
    job = call.job
    require_running(job)
    await call.operations.profile(job)
    return {}


async def _flamegraph(call: ApiCall) -> Any:
    return figures.flamegraph(call.job)


async def _restart(call: ApiCall) -> Any:
    await call.operations.restart(call.job)
    return {}


async def _upgrade(call: ApiCall) -> Any:
    job, body = call.job, call.body
    require_running(job)
    options = body.get("options", [])
    if "--shadow" in options:
        raise RefusedRequest(400, f"ask for a shadow run with POST /v1/jobs/{job.id}/shadow-runs")
    await call.operations.upgrade(
        job,
        body["path"],
        options,
        body.get("arguments", []),
        body.get("folder", ""),
    )
    return {}


async def _shadow_run(call: ApiCall) -> Any:
    job, body = call.job, call.body
    require_running(job)
    options = [*body.get("options", []), "--snapshots", str(body.get("snapshots", 3))]
    options += ["--promote"] if body.get("promote") else []
    request = await call.operations.shadow_run(
        job, body["path"], options, body.get("arguments", []), body.get("folder", "")
    )
    return {"request-id": request.id}


async def _shadow_request(call: ApiCall) -> Any:
    job, id = call.job, call.path["triggerid"]
    request = job.shadow_runs.get(id)
    if request is None:
        raise RefusedRequest(404, f"job {job.id} has no shadow run {id}")
    return jobs.shadow_request(request)


def _get(
    path: str,
    operation: str,
    summary: str,
    handler: Any,
    answer: str,
    query: tuple[Parameter, ...] = (),
    flink: bool = True,
    refusals: tuple[int, ...] = (),
) -> Endpoint:
    refusals += (404,) if "{" in path else ()
    return Endpoint(
        "GET", path, operation, summary, handler, ref(answer), query, refusals=refusals, flink=flink
    )


def _order(
    method: Any,
    path: str,
    operation: str,
    summary: str,
    handler: Any,
    answer: Schema,
    body: Schema | None,
    query: tuple[Parameter, ...] = (),
    flink: bool = True,
) -> Endpoint:
    refusals = (400, 404, 409) if "{" in path else (400, 409)
    return Endpoint(
        method, path, operation, summary, handler, answer, query, body, 202, refusals, flink
    )


_NOTHING = record({})
_FORMAT: Schema = {"type": "string", "enum": ["CANONICAL", "NATIVE"]}
_TARGET = described(
    STRING, "copy the snapshot to this new folder on the server, or to this URL of an object store"
)

ENDPOINTS: tuple[Endpoint, ...] = (
    _get("/overview", "getOverview", "Count jobs, workers and slots.", _overview, "Overview"),
    _get("/config", "getServer", "Show what the server and the token allow.", _server, "Server"),
    _get("/jobs", "listJobs", "List the ids and the statuses of all jobs.", _jobs, "JobIds"),
    _order(
        "POST",
        "/jobs",
        "submitJob",
        "Run a job file of the server's machine, up to its program, and take the program.",
        _submit,
        record({"jobid": STRING}),
        record(
            {"path": described(STRING, "the path of the job file, as seen by the server")},
            {
                "options": described(
                    array(STRING), "options of `penstock submit`, such as `--checkpoint-dir`"
                ),
                "arguments": described(array(STRING), "the arguments of the job file"),
                "folder": described(STRING, "the working directory; by default that of the file"),
            },
        ),
        flink=False,
    ),
    _get("/jobs/overview", "getJobs", "Summarize all jobs.", _jobs_overview, "JobsOverview"),
    _get("/jobs/{jobid}", "getJob", "Show a job with its vertices and figures.", _job, "Job"),
    _order(
        "PATCH",
        "/jobs/{jobid}",
        "cancelJob",
        "End a job at once, without a final snapshot.",
        _cancel,
        _NOTHING,
        None,
        (Parameter("mode", {"type": "string", "enum": ["cancel"]}, "only `cancel`"),),
    ),
    _get("/jobs/{jobid}/plan", "getPlan", "Show the graph of a job.", _plan, "JobPlan"),
    _get(
        "/jobs/{jobid}/figures",
        "getFigures",
        "Show the figures of all subtasks over the last seconds, for a live view.",
        _figures,
        "Figures",
        flink=False,
    ),
    _get("/jobs/{jobid}/config", "getConfig", "Show a job's settings.", _config, "JobConfig"),
    _get("/jobs/{jobid}/status", "getStatus", "Show the status of a job.", _status, "JobStatus"),
    _get(
        "/jobs/{jobid}/exceptions",
        "getExceptions",
        "List the failures of a job by attempt, newest first.",
        _exceptions,
        "Exceptions",
    ),
    _get(
        "/jobs/{jobid}/metrics",
        "getJobMetrics",
        "List the metrics of a job, or the values of some.",
        _job_metrics,
        "Metrics",
        (_GET,),
    ),
    _get(
        "/jobs/{jobid}/vertices/{vertexid}",
        "getVertex",
        "Show the subtasks of a vertex.",
        _vertex,
        "VertexDetails",
    ),
    _get(
        "/jobs/{jobid}/vertices/{vertexid}/backpressure",
        "getBackpressure",
        "Show how much of their time the subtasks of a vertex are busy, idle and blocked.",
        _backpressure,
        "Backpressure",
    ),
    _get(
        "/jobs/{jobid}/vertices/{vertexid}/watermarks",
        "getWatermarks",
        "Show the watermarks of the subtasks of a vertex.",
        _watermarks,
        "Watermarks",
    ),
    _get(
        "/jobs/{jobid}/vertices/{vertexid}/metrics",
        "getVertexMetrics",
        "List the metrics of the tasks and operators of a vertex, or the values of some.",
        _vertex_metrics,
        "Metrics",
        (_GET,),
    ),
    _get(
        "/jobs/{jobid}/vertices/{vertexid}/subtasks/metrics",
        "getSubtaskMetrics",
        "List the metrics of a vertex, or combine the values of some over its subtasks.",
        _subtask_metrics,
        "AggregatedMetrics",
        (_GET,),
    ),
    _get(
        "/jobs/{jobid}/checkpoints",
        "getCheckpoints",
        "List the last snapshots of a job, with counts and sums.",
        _checkpoints,
        "Checkpoints",
    ),
    _get(
        "/jobs/{jobid}/checkpoints/config",
        "getCheckpointConfig",
        "Show the settings of a job's snapshots.",
        _checkpoint_config,
        "CheckpointConfig",
    ),
    _get(
        "/jobs/{jobid}/checkpoints/details/{checkpointid}",
        "getCheckpoint",
        "Show a snapshot, with a summary of each vertex.",
        _checkpoint,
        "CheckpointDetails",
    ),
    _get(
        "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}",
        "getCheckpointSubtasks",
        "Show how the tasks of a vertex took part in a snapshot.",
        _checkpoint_subtasks,
        "CheckpointSubtasks",
    ),
    _get(
        "/jobs/{jobid}/state",
        "getStates",
        "List the states in the newest snapshot of a job.",
        _states,
        "StateNames",
        flink=False,
        refusals=(409,),
    ),
    _get(
        "/jobs/{jobid}/state/{operator}/{state}",
        "queryState",
        "Show entries of a state: of the newest snapshot, or live from the running tasks.",
        _state,
        "StateEntries",
        state.PARAMETERS,
        flink=False,
        refusals=(409,),
    ),
    _order(
        "POST",
        "/jobs/{jobid}/savepoints",
        "triggerSavepoint",
        "Take a savepoint. The answer has the id of a request, to ask for its state.",
        _savepoint,
        ref("Trigger"),
        record(
            {},
            {
                "cancel-job": described(BOOLEAN, "stop the job with a final snapshot instead"),
                "target-directory": _TARGET,
                "formatType": described(_FORMAT, "ignored: there is one format"),
            },
        ),
    ),
    _get(
        "/jobs/{jobid}/savepoints/{triggerid}",
        "getSavepointRequest",
        "Show whether a requested savepoint or stop is done, and where its snapshot is.",
        _snapshot_request,
        "SnapshotRequest",
    ),
    _order(
        "POST",
        "/jobs/{jobid}/stop",
        "stopJob",
        "Stop a job with a final snapshot. The answer has the id of a request.",
        _stop,
        ref("Trigger"),
        record(
            {},
            {
                "drain": described(BOOLEAN, "only false"),
                "targetDirectory": _TARGET,
                "formatType": described(_FORMAT, "ignored: there is one format"),
            },
        ),
    ),
    _order(
        "POST",
        "/jobs/{jobid}/rescale",
        "rescaleJob",
        "Continue a job with another parallelism.",
        _rescale,
        _NOTHING,
        record({"parallelism": {"type": "integer", "minimum": 1, "maximum": 32768}}),
        flink=False,
    ),
    _order(
        "POST",
        "/jobs/{jobid}/upgrade",
        "upgradeJob",
        "Replace the program of a job by that of a job file; return to the old one if it fails.",
        _upgrade,
        _NOTHING,
        record(
            {"path": described(STRING, "the path of the job file, as seen by the server")},
            {
                "options": described(
                    array(STRING), "options of `penstock upgrade`, such as `--allow-dropped`"
                ),
                "arguments": described(array(STRING), "the arguments of the job file"),
                "folder": described(STRING, "the working directory; by default that of the file"),
            },
        ),
        flink=False,
    ),
    _order(
        "POST",
        "/jobs/{jobid}/shadow-runs",
        "startShadowRun",
        "Compare the program of a job file with that of a running job, over the same input. The "
        "answer has the id of a request, to ask for the report.",
        _shadow_run,
        ref("Trigger"),
        record(
            {"path": described(STRING, "the path of the job file, as seen by the server")},
            {
                "snapshots": described(
                    {"type": "integer", "minimum": 1, "maximum": 1_000_000},
                    "the number of snapshots that the run takes; 3 by default",
                ),
                "promote": described(BOOLEAN, "upgrade the job if the output is equal"),
                "options": described(
                    array(STRING), "other options of `penstock upgrade`, such as `--parallelism`"
                ),
                "arguments": described(array(STRING), "the arguments of the job file"),
                "folder": described(STRING, "the working directory; by default that of the file"),
            },
        ),
        flink=False,
    ),
    _get(
        "/jobs/{jobid}/shadow-runs/{triggerid}",
        "getShadowRun",
        "Show whether a shadow run has ended, and what differs.",
        _shadow_request,
        "ShadowRequest",
        flink=False,
    ),
    _order(
        "POST",
        "/jobs/{jobid}/flamegraph",
        "sampleStacks",
        "Sample the call stacks of all workers of a job for five seconds.",
        _profile,
        _NOTHING,
        None,
        flink=False,
    ),
    _get(
        "/jobs/{jobid}/flamegraph",
        "getFlamegraph",
        "Show the call stacks that the workers have sampled last.",
        _flamegraph,
        "Flamegraph",
        flink=False,
    ),
    Endpoint(
        "POST",
        "/jobs/{jobid}/edges/{edge}/records",
        "sampleEdge",
        "Look at records that travel on an edge for a moment.",
        _edge_records,
        ref("EdgeRecords"),
        body=edges.BODY,
        refusals=(400, 404, 409),
        flink=False,
    ),
    _order(
        "POST",
        "/jobs/{jobid}/restart",
        "restartJob",
        "Start a job again from its newest snapshot.",
        _restart,
        _NOTHING,
        None,
        flink=False,
    ),
)
