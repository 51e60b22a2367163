"""Run the mixed-precision benchmark: `python3 -m benchmarks.mixed_precision`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
