"""Attempts ahead of their turn: one process keeps several in flight (``--in-flight N``).

pytest runs one test at a time, and agents make it wait. So attempts are started before their items are set
up, and the item whose attempt is over comes next. Everything that pytest sees is as ever: the item's
set-up, call and teardown, its report, its place in the selection. What an attempt may need from pytest itself
(fixtures of a conftest.py, a time limit, a skip) is only there in the item's turn; such an item waits.
"""
