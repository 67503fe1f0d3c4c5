"""Work that a backend does before a barrier, so that the snapshot is written faster."""
