"""Run the command benchmark: `python3 -m benchmarks.command`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
