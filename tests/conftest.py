"""What holds for every test."""

import os
import signal
import sys

from hypothesis import HealthCheck, settings

# No example fails because the machine is busy.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Tests start some thousand programs: none should compile dlcloud and its libraries anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Threads that wait for others give their core away. Two test files run at once: with the defaults, which poll
# for some time, programs of two threads each on two cores take five times as long.
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "OPENBLAS_NUM_THREADS": "1"}


def pytest_configure():
    """Take Ctrl-C as a terminal gives it: a shell that starts a run in the background has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
