"""Channels between tasks: elements, sending and receiving ends, connections, the input gate.

Nothing here knows tasks, operators or protocols: the task decides which channel is blocked and
which is logged. Start reading at `elements.py`, then `output_channel.py` and `input_channel.py`.
"""
