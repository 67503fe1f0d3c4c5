"""The activities of a task: what it does in pieces, one module for each subject."""
