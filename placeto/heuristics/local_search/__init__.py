"""local_search."""
