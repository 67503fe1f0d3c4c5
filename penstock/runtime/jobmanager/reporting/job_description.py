"""Describe the execution graph and the settings of a job as plain values, for its clients."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.execution_graph import ExecutionGraph


def describe_graph(plan: ExecutionGraph) -> dict[str, Any]:
    """Return the chains of a graph as vertices, and its links as edges.

    A vertex has the operators of its chain in order. The id of a vertex is the index of its chain.
    """
    vertices = [
        {
            "id": chain.id,
            "name": chain.name,
            "parallelism": chain.parallelism,
            "source": chain.is_source,
            "sink": any(node.operator.spec.is_sink for node in chain.walk()),
            "loop": plan.loop_of(chain.id),
            "operators": [
                {
                    "uid": node.operator.uid,
                    "name": plan.shown_names[node.operator.uid],
                    "stateful": node.operator.stateful,
                }
                for node in chain.walk()
            ],
        }
        for chain in plan.chains
    ]
    edges = [
        {
            "source": link.source,
            "target": link.target,
            "producer": link.producer,
            "consumer": link.consumer,
            "partitioning": link.partitioning.value,
            "back_edge": link.is_back_edge,
        }
        for link in plan.links
    ]
    return {"max_parallelism": plan.max_parallelism, "vertices": vertices, "edges": edges}


def describe_config(config: JobConfig, folder: str) -> dict[str, Any]:
    """Return the settings of a job by name, as plain values.

    Parameters of the job may hold passwords, so only their names are in the result.

    Arguments:
        config: the settings.
        folder: the folder to which the path of the checkpoint folder is relative.
    """
    settings = {one.name: _plain(getattr(config, one.name)) for one in fields(config)}
    if config.checkpoint_dir is not None:
        settings["checkpoint_dir"] = str(Path(folder) / config.checkpoint_dir)
    return {**settings, "job_parameters": sorted(config.job_parameters)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return str(value)
