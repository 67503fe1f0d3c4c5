"""The Nexmark benchmark: queries over the events of an online auction."""
