"""Describe a snapshot: its manifest, handles and schemas."""
