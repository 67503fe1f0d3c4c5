"""Evaluate the protocols as the paper of ABS does."""
