"""Attempts of other programs as evidence of ours: trials of Harbor, and the jobs that they belong to.

Every trial becomes one settled attempt directory, every job one suite run. What has no place in the
evidence stays beside it as it was (``imported/``).
"""
