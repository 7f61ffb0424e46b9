"""Code that several tasks of this data set import; the agent never sees it."""
