"""Run a version of a program beside the running job, with its output captured.

`docs/inside/decisions/074-shadow-runs.md` says why a shadow run has this form.
"""
