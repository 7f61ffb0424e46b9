"""Looks at evidence and changes none of it: ``pytest-ageval analyze``."""
