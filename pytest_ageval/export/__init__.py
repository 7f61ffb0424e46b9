"""Export of what agents did, from the evidence of attempts, into formats of other programs.

Reads the run phase only. What the judges were asked and said, and everything under ``evaluation/``,
may hold gold and is never opened.
"""
