"""Count the work per record, instead of timing it."""
