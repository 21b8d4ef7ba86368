"""The log: its bytes, writing and reading, the checks of what is taken into it, and the table of decisions about a log at a start."""
