# needs: numpy
"""A script that runs the training as its child, as launchers do."""

import subprocess
import sys

sys.exit(subprocess.run([sys.executable, "numpy_loop.py"]).returncode)
