"""The entries of one named state in memory: plain tables and composite tables."""
