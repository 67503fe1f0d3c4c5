"""The file operations that the storage of snapshots is made of."""
