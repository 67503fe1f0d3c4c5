"""Recognize Parquet files of Spark that count old days in the Julian calendar.

Spark before 3.0 (3.1 for times of 96 bits), and later versions in their mode LEGACY, counted days
before 1582-10-15 in the Julian calendar, and used other offsets of time zones before 1900. Spark
recognizes such files by their metadata and converts the values when it reads; Arrow does not.
Nothing here opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["has_old_calendar"]

_SPARK_VERSION = b"org.apache.spark.version"
_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_GOOD_SPARK = (3, 1)


def has_old_calendar(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether old days and times in a file may be of the old calendar.

    Arguments:
        metadata: the metadata in the file's footer.
    """
    metadata = metadata or {}
    if any(mark in metadata for mark in _MARKS):
        return True
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_SPARK_VERSION, b""))
    return version is not None and (int(version[1]), int(version[2])) < _FIRST_GOOD_SPARK
