"""Recognize Parquet files in which Spark wrote old dates in the Julian calendar.

Spark before 3.0 wrote dates before 1582-10-15 in the Julian calendar, and used other time zone
offsets before 1900. For timestamps of 96 bits (INT96), this is true for Spark before 3.1. Later
versions do the same in the mode LEGACY. Spark recognizes such files by their metadata, and
converts the values when it reads them. Arrow does not convert them. This module opens no files;
it reads metadata only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SPARK_VERSION = b"org.apache.spark.version"
_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_GOOD_SPARK = (3, 1)


def has_old_calendar(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether dates and times in a Parquet file may use the Julian calendar.

    Arguments:
        metadata: the key-value metadata in the file's footer; None if there is none.
    """
    metadata = metadata or {}
    if any(mark in metadata for mark in _MARKS):
        return True
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_SPARK_VERSION, b""))
    return version is not None and (int(version[1]), int(version[2])) < _FIRST_GOOD_SPARK
