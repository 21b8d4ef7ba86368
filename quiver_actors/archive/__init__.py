"""The copy of sealed segments in an object store: stores, the manifest of what is there, and the process that uploads."""
