"""The operators of batch mode: final results only, and one key after the other."""
