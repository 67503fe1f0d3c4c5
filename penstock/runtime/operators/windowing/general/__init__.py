"""The general operator of windows. Start reading at `window_operator.py`."""
