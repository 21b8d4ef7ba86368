"""Files to deploy nodes with, as they are printed by `quiver deploy print`: nothing here is code of a node."""
