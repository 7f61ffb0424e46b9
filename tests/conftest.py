"""For all tests: pytester, which runs a pytest of its own."""

pytest_plugins = "pytester"
