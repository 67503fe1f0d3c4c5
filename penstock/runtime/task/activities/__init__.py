"""The activities of a task: its pieces of work, with one module for each subject."""
