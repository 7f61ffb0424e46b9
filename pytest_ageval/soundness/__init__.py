"""Whether tasks measure what they say: ``pytest-ageval check``."""
