"""Attempts at Harbor tasks: the agent gets the instruction, a script of the task writes the reward."""
