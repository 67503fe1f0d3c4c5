"""Define watermark strategies, for compatibility with PyFlink."""
