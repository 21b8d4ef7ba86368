"""Finds properties of this machine that will hurt a node: facts are gathered, then judged. `quiver doctor` prints the result."""
