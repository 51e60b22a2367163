"""How many files a process may have open: each connection is one, and many shells allow 1,024, or 256."""

import resource

MOST = 10_240
"""The most open files that macOS allows, whatever its limit says; other systems allow more."""


def allow_many_files() -> None:
    """Raise the soft limit of open files as far as the hard one allows; it is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised(soft, hard), hard))


def raised(soft: int, hard: int) -> int:
    """Return the soft limit to set in place of the present one."""
    if soft == resource.RLIM_INFINITY:
        return soft
    return max(soft, MOST if hard == resource.RLIM_INFINITY else min(hard, MOST))
