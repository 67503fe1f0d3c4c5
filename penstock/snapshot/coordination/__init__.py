"""Coordinate the snapshots of a job: begin, complete, abort and restore them."""
