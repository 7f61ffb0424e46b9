"""Parts for tests of tasks, boxes and executors: a scripted model, and kits that a kind must pass.

`pytest_ageval.testing.scripted_model` answers the requests of any agent or executor from a script,
on the loopback interface, without a provider and without spend.
"""
