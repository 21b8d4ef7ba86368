"""The only access to the file system: the protocol of a disk, the real disk, and a disk in front of another one that sees every call."""
