"""How many descriptors this process may have."""

from __future__ import annotations

import resource


def want_descriptors(count: int) -> None:
    """Raise the soft limit of this process to `count`, or as far as the hard limit allows. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(hard, count)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
