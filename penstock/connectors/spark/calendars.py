"""The calendar of days in Parquet files that Spark wrote: today's, or the one before it.

Sparks before 3.0 (for times of 96 bits, 3.1), and later ones in their mode LEGACY, counted in the
Julian calendar before 1582-10-15, and by other offsets of zones before 1900. Spark knows this by
the file's metadata and counts anew when it reads; Arrow does not. Nothing here opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["has_old_calendar"]

_SPARK_VERSION = b"org.apache.spark.version"
_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_GOOD_SPARK = (3, 1)


def has_old_calendar(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Whether old days and times in a file may be of the old calendar.

    Arguments:
        metadata: of the file's footer.
    """
    metadata = metadata or {}
    if any(mark in metadata for mark in _MARKS):
        return True
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_SPARK_VERSION, b""))
    return version is not None and (int(version[1]), int(version[2])) < _FIRST_GOOD_SPARK
