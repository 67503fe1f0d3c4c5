"""Check the values that a program passes to the API."""
