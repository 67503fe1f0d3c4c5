"""Check, add and drop partitions of one table in Spark's catalog."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.connectors.lake.table import (
    Table,
    difference,
    local_folder,
    partition_literals,
)
from penstock.connectors.spark.sink.access import Access, Run
from penstock.connectors.spark.sink.described_table import look_up
from penstock.dataflow.errors import GraphError, JobError


@dataclass(frozen=True)
class SparkCatalogs:
    """Opens the entry of a table in Spark's catalog.

    Arguments:
        access: the access to the session.
    """

    access: Access

    @contextlib.contextmanager
    def open(self, table: Table) -> Iterator[Catalog]:
        """Connect to the session, and yield the entry of a table."""
        with self.access.connect() as run:
            yield Catalog(table, run)


class Catalog:
    """Checks and changes the entry of one table in Spark's catalog.

    Arguments:
        table: the table.
        run: a function that runs an SQL statement.
    """

    #: The largest number of partitions that one statement adds.
    _AT_A_TIME = 200
    #: The largest number of partitions that are looked up one by one. For more partitions, all
    #: partitions of the table are listed.
    _ONE_BY_ONE = 20

    def __init__(self, table: Table, run: Run) -> None:
        self._table = table
        self._run = run
        #: The partitions that are known to have the same name in the catalog as their folder.
        self._named_alike: set[str] = set()

    def require(self, identities: Iterable[dict[str, Any]]) -> None:
        """Check that the table in the catalog is the one that output was staged for.

        Arguments:
            identities: the table's identity in each piece of staged output.

        Raises:
            JobError: if the table in the catalog differs, or if it is not found.
        """
        now = self._identity()
        for identity in identities:
            change = difference(now, identity)
            if change is not None:
                raise JobError(
                    f"{self._table} is not the table that this output was staged for: {change}. "
                    f"Nothing was published. Put the table back as it was, or start the job afresh"
                )

    def change_since(self, identity: dict[str, Any]) -> str | None:
        """Return how the table in the catalog differs from an identity; None if it is equal."""
        return difference(self._identity(), identity)

    def _identity(self) -> dict[str, Any]:
        try:
            _, now = look_up(self._run, str(self._table.name))
        except GraphError as error:
            raise JobError(f"output cannot be published any more: {error}") from error
        return now

    def partitions(self) -> set[str]:
        """Return the folder names of all partitions of the table in the catalog."""
        if not self._table.registered:
            return set()
        return set(self._run(f"SHOW PARTITIONS {self._table.name}"))

    def require_own_folders(self, folders: Collection[str]) -> None:
        """Check that each existing partition is stored in the table's folder under its own name.

        Raises:
            JobError: if the catalog has another location for a partition.
        """
        known = self._known(folders)
        for folder in sorted(known):
            where = partition_literals(folder, self._table.schema)
            described = self._run(f"DESCRIBE TABLE EXTENDED {self._table.name} {where} AS JSON")
            location = local_folder(str(self._table), json.loads(described[0])["location"])
            if location != self._table.location / folder:
                raise JobError(
                    f"the partition {folder} of {self._table} has a location of its own, "
                    f"{location}: files in the table's folder would not be seen. Drop that "
                    f"partition, or set its location to {self._table.location / folder}"
                )
        self._named_alike |= known

    def _known(self, folders: Collection[str]) -> set[str]:
        """Return the given folders that are also the names of partitions in the catalog."""
        if not self._table.registered:
            return set()
        if len(folders) > self._ONE_BY_ONE:
            return self.partitions() & set(folders)
        found: set[str] = set()
        for folder in folders:
            where = partition_literals(folder, self._table.schema)
            found.update(self._run(f"SHOW PARTITIONS {self._table.name} {where}"))
        return found & set(folders)

    def add(self, folders: Collection[str]) -> None:
        """Add partitions to the catalog, except those that it already has.

        Raises:
            JobError: if the catalog gives a new partition another name than its folder has.
        """
        if not self._table.registered:
            return
        wanted = sorted(folders)
        for begin in range(0, len(wanted), self._AT_A_TIME):
            some = wanted[begin : begin + self._AT_A_TIME]
            specs = " ".join(partition_literals(folder, self._table.schema) for folder in some)
            self._run(f"ALTER TABLE {self._table.name} ADD IF NOT EXISTS {specs}")
        strange = set(wanted) - self._named_alike
        lost = strange - self._known(strange)
        if lost:
            raise JobError(
                f"the catalog names partitions of {self._table} in another way than their folders: "
                f"{sorted(lost)[:3]}; files there would not be seen"
            )

    def drop(self, folders: Iterable[str]) -> None:
        """Drop partitions from the catalog, because their files were removed."""
        for folder in sorted(folders):
            where = partition_literals(folder, self._table.schema)
            self._run(f"ALTER TABLE {self._table.name} DROP IF EXISTS {where}")

    def refresh(self) -> None:
        """Make the Spark session list the table's files again."""
        self._run(f"REFRESH TABLE {self._table.name}")
