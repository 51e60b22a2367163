"""Run the TensorFlow benchmark: `python3 -m benchmarks.tensorflow_cpu`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
