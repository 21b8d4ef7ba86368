"""What of this machine will hurt a node, before it does: facts are gathered, then judged. `quiver doctor` prints it."""
