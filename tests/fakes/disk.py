"""A disk that is full: no file of this process can grow."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(at_byte: int = 0) -> Iterator[None]:
    """Let every write behind `at_byte` of a file fail; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_byte, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
