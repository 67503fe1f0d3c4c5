"""Work that a backend does before a barrier, to write the snapshot faster."""
