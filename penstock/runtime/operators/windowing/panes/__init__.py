"""The operators of tumbling and sliding windows. Start reading at `panes.py`."""
