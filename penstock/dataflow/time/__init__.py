"""Define watermark strategies for compatibility with PyFlink. Penstock has no event time yet."""
