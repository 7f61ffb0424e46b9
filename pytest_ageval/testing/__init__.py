"""Parts for tests of tasks, boxes and executors: a scripted model, and kits that a kind must pass.

`pytest_ageval.testing.scripted_model` answers the requests of any agent or executor from a script,
on the loopback interface, without a provider and without spend.
`pytest_ageval.testing.box_contract` and `pytest_ageval.testing.executor_contract` are test classes that
the author of a box or an executor subclasses.
"""
