"""Objects by their keys, in a directory, behind HTTP, or in memory: whole puts, and conditional ones for who is first."""
