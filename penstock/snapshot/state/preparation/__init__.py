"""Work that is done before a snapshot, so that little is left to do after its barrier."""
