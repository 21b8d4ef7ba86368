"""Owns the work with several nodes: where they are, the requests of a reader or a committer to each, and Arrow Flight between hosts.

Also the clients on other hosts that push and subscribe (`client`), and what serves them (`remote_clients`).

A node's own programs use its workers directly. Others use the node's Flight server (`quiver serve`), which is an ordinary client of those
workers: it adds no state and no promise of its own.
"""
