"""For all tests: pytester, which runs a pytest of its own."""

# Imported before pytester can: it forgets what a run of its own has imported. An httpx that knows the
# exceptions of a forgotten httpcore does not recognise those of the next one.
import httpcore  # noqa: F401
import httpx  # noqa: F401

pytest_plugins = "pytester"
