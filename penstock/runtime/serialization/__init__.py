"""Encode records and state values as bytes, by type and by column."""
