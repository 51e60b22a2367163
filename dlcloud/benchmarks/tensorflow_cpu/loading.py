"""Import TensorFlow and Keras without what they print meanwhile; runs inside workers.

Some of TensorFlow's lines come before it has read TF_CPP_MIN_LOG_LEVEL: four for each of a hundred workers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _stderr_dropped() -> Iterator[None]:
    """Drop what is written to stderr, by C code too; what fails is raised all the same."""
    standard, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(standard, 2)
        os.close(standard)
        os.close(nowhere)


with _stderr_dropped():
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]
