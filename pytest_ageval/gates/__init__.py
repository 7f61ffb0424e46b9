"""Whether a run is good enough: gates that a pipeline depends on, and failures that are known."""
