"""Operators that group the records of a key into windows.

`choice.window_class` chooses between these operators:

* `WindowOperator` (`window_operator.py`) is the general one. It works with any assigner, trigger
  and evictor.
* `PaneOperator` (`pane_operator.py`) is for tumbling and sliding windows with their default
  trigger. A record is added to one pane, and a window combines its panes when it fires.
* `SlidingPaneOperator` and `InversePaneOperator` are for sliding windows of many panes. They use
  values of one window for the next one.
* `SessionOperator` (`session_operator.py`) is for event-time sessions with their default trigger
  and an aggregate.

All state of windows, and their timers, is keyed state. So snapshots, rescaling and state beyond the
memory work as for every other keyed operator.
"""
