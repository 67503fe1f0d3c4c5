"""Change the code of a job for a shadow run: `shadow_code`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.config.restart_strategies import RestartStrategy
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.source import Source
from penstock.runtime.control.job_code import pack, unpack
from penstock.runtime.shadow.captured_sink import CapturedSink
from penstock.runtime.shadow.sliced_source import SlicedSource, SliceFiles, records_read


@dataclass(frozen=True)
class ShadowEndpoint:
    """A source or sink of a shadow run.

    Arguments:
        uid, former_uid, name: those of the operator; there may be no former uid.
        output: the folder of the captured output of a sink; empty for a source.
    """

    uid: str
    former_uid: str | None
    name: str
    output: str = ""


def shadow_code(packed: bytes, folder: Path) -> bytes:
    """Return the code of a job with captured sinks and sliced sources.

    The job has its snapshots in the folder of the run, and is never restarted: output would be
    captured twice.

    Arguments:
        packed: the code, from `job_code.pack`.
        folder: the folder of the run. If it has limits, the run reads the slice that they describe.

    Raises:
        GraphError: if the job can have no shadow run.
    """
    code = unpack(packed)
    _require_snapshots(code.config)
    plan = compile_graph(code.graph, code.config)
    uids = {info.id: info.uid for info in plan.operators}
    former = {new: old for old, new in plan.former_uids.items()}
    files = SliceFiles(folder)
    measures = not files.limits.exists()
    known = records_read(files.limits)
    endpoints: list[ShadowEndpoint] = []
    for operator in code.graph.running:
        # A uid that is not given depends on the name of the function, which is another one below.
        uid = operator.uid = uids[operator.id]
        before = operator.former_uid = former.get(uid)
        if operator.spec.is_source:
            _require_readable(operator)
            name = before if before in known and uid not in known else uid
            operator.function = SlicedSource(operator.function, name, str(folder), measures)
            endpoints.append(ShadowEndpoint(uid, before, operator.name))
        elif operator.spec.is_sink:
            output = str(folder / "output" / str(len(endpoints)))
            operator.function = CapturedSink(output)
            endpoints.append(ShadowEndpoint(uid, before, operator.name, output))
    code.config = replace(
        code.config,
        checkpoint_dir=str(folder / "job"),
        snapshot_store=None,
        retention=None,
        claim_mode=RecoveryClaimMode.NO_CLAIM,
        restart=RestartStrategy("none"),
        restart_scope=RestartScope.JOB,
        restart_standby=0,
        restart_reactive=False,
        # A run that is stopped needs no last snapshot, and user code may hang.
        stop_timeout_seconds=1.0,
    )
    (folder / "endpoints").write_text(json.dumps([asdict(one) for one in endpoints]))
    return pack(code)


def endpoints_of(folder: Path) -> list[ShadowEndpoint]:
    """Return the sources and sinks of a shadow run that has begun."""
    return [ShadowEndpoint(**one) for one in json.loads((folder / "endpoints").read_text())]


def _require_snapshots(config: JobConfig) -> None:
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        raise GraphError("a job in batch mode has no shadow run: it takes no snapshots")
    none = config.checkpointing_mode is CheckpointingMode.NONE
    if config.checkpoint_interval_seconds is None or none:
        raise GraphError(
            "the program takes no periodic snapshots, which say how long a shadow run is: "
            "call env.enable_checkpointing()"
        )


def _require_readable(operator: Operator) -> None:
    """Raise `GraphError` if reading a source would take records away from the running job."""
    source: Source[object] = operator.function
    name = f"a shadow run cannot read the source {operator.name!r}"
    if source.acknowledges or not source.rewindable:
        raise GraphError(
            f"{name}: its records cannot be read again from a position, so they would be "
            f"missing in the running job; compare with a fork that has other sources and sinks"
        )
    if source.exclusive:
        raise GraphError(
            f"{name}: only one job can read a {type(source).__name__} at a time, and this is the "
            f"running job; compare with a fork that has another source"
        )
    if type(source).prepare is not Source.prepare:
        raise GraphError(
            f"{name}: {type(source).__name__} keeps data in the folder of the job, or a place in "
            f"its server, which belongs to the running job; compare with a fork instead"
        )
