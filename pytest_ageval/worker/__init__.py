"""Child processes that run a task's run.py and evaluator.py.

`client` is the parent's side (`WorkerPool`, `Worker`, `ScriptSpec`, `WorkerOutcome`), `server` the
process that forks workers, `child` what a worker does, `protocol` what the two say to each other,
`processes` how processes are found and ended. The package itself imports nothing, because workers
load parts of it.
"""
