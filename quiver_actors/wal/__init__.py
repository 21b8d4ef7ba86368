"""The log: its bytes, writing and reading, what may be taken into it, and the table of what to do with one that a start finds."""
