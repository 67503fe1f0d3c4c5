"""File operations: on the disk, in memory, and their errors."""
