"""A box with a limit of memory, and an agent that answers from a file."""
