"""Implement file operations on the disk and in memory, and describe their errors."""
