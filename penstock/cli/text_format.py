"""Format sizes, durations and the state of loops for output on a terminal."""

from __future__ import annotations

from typing import Any


def loop_text(loop: dict[str, Any]) -> str:
    """Return a text with the number of records in a back-edge, and their size on disk."""
    text = f"loop {loop['name']}: {loop['queued_records']:,} records in its back-edge"
    if loop["spilled_bytes"]:
        text += f", {size_text(loop['spilled_bytes'])} of them on disk"
    return text


def size_text(size: int) -> str:
    """Return a text for a size in bytes, such as "1.5 MB"."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration_text(seconds: float) -> str:
    """Return a text for a duration in seconds, such as "5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
