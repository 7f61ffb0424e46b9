"""Packages whose hooks and fixtures are known to do the same for every task, or nothing.

What another plugin does with a single item is not known, so where it has a say, items are treated one by one.
"""

#: Beginnings of module names. What these do depends on the session, or on marks that no task has
#: (`pytest_ageval.collection.RESERVED_MARKS`).
KNOWN = (
    *("_pytest.", "pytest_ageval.", "xdist.", "pytest_html.", "pytest_timeout", "pytest_rerunfailures"),
    *("pytest_asyncio.", "pytest_repeat", "anyio.", "pytest_benchmark.", "pytest_cov.", "_hypothesis"),
)
