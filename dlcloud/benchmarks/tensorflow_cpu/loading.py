"""Import TensorFlow and Keras without their messages; runs inside workers.

Some of TensorFlow's lines come before it has read TF_CPP_MIN_LOG_LEVEL: four for each of a hundred workers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _stderr_dropped() -> Iterator[None]:
    """Drop the output to stderr, also of C code; exceptions are raised all the same."""
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


with _stderr_dropped():
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]
