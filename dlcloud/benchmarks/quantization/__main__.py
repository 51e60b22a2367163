"""Run the quantization benchmark: `python3 -m benchmarks.quantization`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
