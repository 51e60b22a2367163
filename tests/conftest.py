"""What holds for every test."""

import signal


def pytest_configure():
    """Take Ctrl-C as a terminal gives it: a shell that starts a run in the background has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
