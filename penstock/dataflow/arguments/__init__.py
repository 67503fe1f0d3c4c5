"""Check what a program passes to the API."""
