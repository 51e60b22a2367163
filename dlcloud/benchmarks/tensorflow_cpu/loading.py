"""Import TensorFlow and Keras without their messages; runs inside workers.

Some of TensorFlow's lines come before it has read TF_CPP_MIN_LOG_LEVEL: four for each of a hundred workers.
"""

from ..harness.kernels import capture_output

with capture_output(2):
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]
