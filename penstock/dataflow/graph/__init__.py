"""Compile a program: from its job graph to tasks and channels."""
