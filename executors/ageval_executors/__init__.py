"""Executors: what drives an agent. One module or package each; they import only `pytest_ageval.executor`."""
