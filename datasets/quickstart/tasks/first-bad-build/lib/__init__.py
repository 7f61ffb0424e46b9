"""The rules of the search."""
