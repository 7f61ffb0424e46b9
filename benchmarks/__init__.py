"""Measurements of what this project costs, beside its peers. Each module is a program: see README.md."""
