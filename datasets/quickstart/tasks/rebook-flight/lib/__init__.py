"""The airline and its customer."""
