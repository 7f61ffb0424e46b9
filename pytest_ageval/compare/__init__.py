"""Suite runs beside each other: ``pytest-ageval compare``."""
