"""Spark's catalog as the committer of one table uses it: checks, partitions, refresh."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.connectors.spark.sink.access import Run
from penstock.connectors.spark.sink.table import (
    Table,
    difference,
    local_folder,
    look_up,
    partition_literals,
)
from penstock.dataflow.errors import GraphError, JobError

__all__ = ["Catalog"]


class Catalog:
    """A catalog as the committer of one table uses it.

    Arguments:
        table: the table.
        run: runs a statement of SQL.
    """

    #: Partitions per statement.
    _AT_A_TIME = 200

    def __init__(self, table: Table, run: Run) -> None:
        self._table = table
        self._run = run

    def require(self, identities: Iterable[dict[str, Any]]) -> None:
        """See that the table of the catalog is the one that output was staged for.

        Raises:
            JobError: if it isn't.
        """
        try:
            _, now = look_up(self._run, str(self._table.name))
        except GraphError as error:
            raise JobError(f"output cannot be published any more: {error}") from error
        for identity in identities:
            change = difference(now, identity)
            if change is not None:
                raise JobError(
                    f"{self._table} is not the table that this output was staged for: {change}. "
                    f"Nothing was published. Put the table back as it was, or start the job afresh"
                )

    def partitions(self) -> set[str]:
        """The folders of all partitions that the catalog knows."""
        if not self._table.registered:
            return set()
        return set(self._run(f"SHOW PARTITIONS {self._table.name}"))

    def require_own_folder(self, folder: str) -> None:
        """See that a partition that exists lies where its name says.

        Raises:
            JobError: if somebody gave it a location of its own.
        """
        where = partition_literals(folder, self._table.schema)
        described = self._run(f"DESCRIBE TABLE EXTENDED {self._table.name} {where} AS JSON")
        location = local_folder(str(self._table), json.loads(described[0])["location"])
        if location != self._table.location / folder:
            raise JobError(
                f"the partition {folder} of {self._table} has a location of its own, {location}: "
                f"files in the table's folder would not be seen. Drop that partition, or set its "
                f"location to {self._table.location / folder}"
            )

    def add(self, folders: Iterable[str]) -> None:
        """Make partitions known; those that are known already stay as they are."""
        if not self._table.registered:
            return
        wanted = sorted(folders)
        for begin in range(0, len(wanted), self._AT_A_TIME):
            some = wanted[begin : begin + self._AT_A_TIME]
            specs = " ".join(partition_literals(folder, self._table.schema) for folder in some)
            self._run(f"ALTER TABLE {self._table.name} ADD IF NOT EXISTS {specs}")
        lost = set(wanted) - self.partitions() if wanted else set()
        if lost:
            raise JobError(
                f"the catalog names partitions of {self._table} in another way than their folders: "
                f"{sorted(lost)[:3]}; files there would not be seen"
            )

    def drop(self, folders: Iterable[str]) -> None:
        """Forget partitions whose files are gone."""
        for folder in sorted(folders):
            where = partition_literals(folder, self._table.schema)
            self._run(f"ALTER TABLE {self._table.name} DROP IF EXISTS {where}")

    def refresh(self) -> None:
        """Let the session list the table's files anew."""
        self._run(f"REFRESH TABLE {self._table.name}")
