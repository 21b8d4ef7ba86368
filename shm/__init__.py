"""Memory that processes share: arenas, live words, the counters page, and telling who is alive. Knows no Arrow and no log.

Needs the standard library and posix_ipc only, and starts no thread: processes that fork import it.
"""
