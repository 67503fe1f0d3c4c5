"""Channels between tasks: elements, sending and receiving ends, connections, the input gate.

These modules use no tasks, operators or protocols. The task decides which channels are blocked
and which are logged. Start reading at `elements.py`, then `output_channel.py` and
`input_channel.py`.
"""
