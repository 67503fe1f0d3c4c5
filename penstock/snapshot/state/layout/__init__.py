"""How the entries of a table are captured and written: the levelled and the dense layout."""
