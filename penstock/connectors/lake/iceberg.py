"""Describe an Iceberg table for a sink, and refuse a table that cannot be written exactly once.

The user's program reads the table through pyiceberg. The description is plain data. Data files
contain the ids of the table's columns, as Iceberg requires. `iceberg_writer.py` computes the
partition of each row, and `iceberg_log.py` performs the transactions. (Iceberg's Table Spec,
"Schemas and Data Types", "Partitioning".)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.lake.table import local_folder
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.lake.table_store import TableStore
from penstock.dataflow.errors import GraphError, connector_recoverability
from penstock.object_store import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.types import IcebergType, NestedField

#: The folder of the data files, relative to the folder of the table.
_DATA = "data/"
_FILE_IO = "penstock.connectors.lake.durable_io.DurableFileIO"


@dataclass(frozen=True)
class PartitionField:
    """A field by which an Iceberg table is partitioned.

    Arguments:
        name: the name of the field.
        source: the name of the column that the field is computed from.
        transform: the name of the Iceberg transform, such as `identity`, `day` or `bucket[16]`.
    """

    name: str
    source: str
    transform: str


@dataclass(frozen=True)
class IcebergTable(LakeTable):
    """An Iceberg table. Its data files hold all columns, so `partition_by` is empty.

    Arguments:
        catalog: the name of the table's catalog.
        identifier: the namespace and the name of the table in the catalog.
        properties: the settings with which pyiceberg connects to the catalog.
        schema_id, spec_id: the ids of the schema and of the partitioning of staged rows.
        fields: the fields by which the table is partitioned.
    """

    catalog: str = ""
    identifier: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    schema_id: int = 0
    spec_id: int = 0
    fields: tuple[PartitionField, ...] = ()

    def require_mode(self, mode: str) -> None:
        """Check that the table can be written in a mode of the sink.

        Raises:
            GraphError: if the mode removes rows, and the table is in an object store.
        """
        if mode != "append" and self.store is not None:
            raise GraphError(
                f"the sink cannot write {self} with mode={mode!r}: only rows of tables in local "
                f"folders can be replaced"
            )


def iceberg_table(
    catalog: str,
    identifier: list[str],
    properties: dict[str, str],
    store: ObjectStore | None = None,
) -> IcebergTable:
    """Read the description of an Iceberg table through its catalog.

    Arguments:
        catalog: the name of the catalog.
        identifier: the namespace and the name of the table in the catalog.
        properties: the settings with which pyiceberg connects to the catalog.
        store: how to reach the object store that has the table; None if the table is in a local
            folder.

    Raises:
        GraphError: if the table does not exist or cannot be written exactly once, the catalog
            cannot be read, or a package is missing.
    """
    name = ".".join([catalog, *identifier])
    with opened(catalog, tuple(identifier), properties) as table:
        reason = refusal(table)
        if reason is not None:
            raise GraphError(f"the sink cannot write the Iceberg table {name}: {reason}")
        schema = table.schema()
        place = None if store is None else _in_store(name, table, store)
        location = local_folder(name, table.location()) if place is None else Path(str(place))
        if any(sign in str(location) for sign in "#?%"):
            raise GraphError(
                f"the sink cannot write the Iceberg table {name}: the name of its location "
                f"{location} has a sign that means something else in a URI"
            )
        return IcebergTable(
            name=name,
            location=location,
            format="parquet",
            schema=pa.schema([_arrow_field(f) for f in schema.fields]),
            identity=identity_of(table, location),
            data=_DATA,
            catalog=catalog,
            identifier=tuple(identifier),
            properties=properties,
            store=place,
            schema_id=schema.schema_id,
            spec_id=table.spec().spec_id,
            fields=tuple(
                PartitionField(f.name, str(schema.find_column_name(f.source_id)), str(f.transform))
                for f in table.spec().fields
            ),
        )


@contextlib.contextmanager
def opened(
    catalog: str, identifier: tuple[str, ...], properties: dict[str, str]
) -> Iterator[PyIcebergTable]:
    """Open the newest state of a table, and close its catalog at the end of the block.

    Raises:
        GraphError: if the table does not exist, the catalog cannot be read, or the package
            pyiceberg is missing.
    """
    name = ".".join([catalog, *identifier])
    try:
        # Some modules of pyiceberg need further packages: sqlalchemy, pyarrow or a Hive client.
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError, NotInstalledError

        import penstock.connectors.lake.durable_io  # noqa: F401
    except ImportError as error:
        raise GraphError(_MISSING.format(error)) from error
    options = {**properties, "py-io-impl": _FILE_IO, "init_catalog_tables": "false"}
    loaded: Catalog | None = None
    try:
        loaded = load_catalog(catalog, **options)
        table = loaded.load_table(identifier)
    except (NotInstalledError, ImportError) as error:
        raise GraphError(_MISSING.format(error)) from error
    except NoSuchTableError as error:
        raise GraphError(
            f"the Iceberg catalog {catalog!r} has no table {'.'.join(identifier)!r}: create it"
        ) from error
    except Exception as error:
        # Each kind of catalog has its own classes of errors.
        raise GraphError(
            f"the Iceberg table {name} cannot be read: {_first_line(error)}. "
            f"Its catalog was looked for with {properties}",
            recoverability=connector_recoverability(error),
        ) from error
    else:
        yield table
    finally:
        if loaded is not None:
            loaded.close()


_MISSING = (
    "Iceberg tables are written through pyiceberg, and a package is missing: "
    "pip install 'penstock[iceberg]' ({})"
)


def _in_store(name: str, table: PyIcebergTable, store: ObjectStore) -> TableStore:
    """Return the place of a table in an object store."""
    location = table.location().rstrip("/")
    if not location.startswith(f"{store.bucket}/"):
        raise GraphError(
            f"the Iceberg table {name} is in {location}, and store= is for {store.bucket}: give "
            f"the store of the table's own bucket"
        )
    return TableStore(store.at(location))


def identity_of(table: PyIcebergTable, location: Path) -> dict[str, Any]:
    """Return the identity of a table; another table of the same name has another identity."""
    return {
        "location": str(location),
        "format": "iceberg",
        "id": str(table.metadata.table_uuid),
        "partition columns": [str(f) for f in table.spec().fields],
        "partitioning": table.spec().spec_id,
        "columns": {
            f.name: f"{f.field_id}: {'required ' if f.required else ''}{f.field_type}"
            for f in table.schema().fields
        },
    }


def refusal(table: PyIcebergTable) -> str | None:
    """Return the reason why a table cannot be written exactly once, or None."""
    if table.format_version > 2:
        return (
            f"its format has version {table.format_version}, and pyiceberg writes 1 and 2: "
            f"create it with TBLPROPERTIES ('format-version'='2')"
        )
    schema = table.schema()
    for part in table.spec().fields:
        source = str(schema.find_column_name(part.source_id))
        kind = schema.find_type(part.source_id)
        transform = str(part.transform)
        if transform == "void":
            continue
        if "." in source:
            return f"it is partitioned by {source!r}, which lies within another column"
        if transform == "unknown" or (
            not transform.startswith(("year", "month", "day", "hour", "bucket"))
            and str(kind) not in ("boolean", "int", "long", "date", "string")
        ):
            return (
                f"it is partitioned by {transform}({source}) of the type {kind}, and only whole "
                f"numbers, dates, texts, booleans and times by day or the like are known"
            )
    return None


# ---- types


def _arrow_field(field: NestedField) -> pa.Field:
    try:
        kind = _arrow_type(field.field_type)
    except GraphError as error:
        raise GraphError(f"column {field.name!r}: {error}") from None
    metadata = {"PARQUET:field_id": str(field.field_id)}
    return pa.field(field.name, kind, field.optional, metadata)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    match kind:
        case StructType():
            return pa.struct([_arrow_field(f) for f in kind.fields])
        case ListType():
            return pa.list_(_arrow_field(kind.element_field))
        case MapType():
            return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    if str(kind) not in _TYPES:
        raise GraphError(f"the sink cannot write the type {kind} of Iceberg")
    return _TYPES[str(kind)]


_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
