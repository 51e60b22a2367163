"""Signals at random moments of a command, as a user or an operating system sends them."""

import re
import signal
import threading
import time

from terminal import TIMEOUT_S

SIGNALS = (signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def press(process, chance, *, trigger, within_s, signals=SIGNALS):
    """Send some signals at a random moment after a line of the command; return what it printed."""
    lines, is_reached = [], threading.Event()

    def read():
        for line in process.stderr:
            lines.append(line)
            if re.search(trigger, line):
                is_reached.set()
        is_reached.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert is_reached.wait(TIMEOUT_S), lines
    time.sleep(chance.uniform(0, within_s))
    for _ in range(chance.randint(1, 5)):
        if process.poll() is None:
            process.send_signal(chance.choice(signals))
            time.sleep(chance.choice((0, 0.05, 0.3, 1.1)))
    process.stdout.read()
    process.wait(TIMEOUT_S)
    reader.join(TIMEOUT_S)
    return "".join(lines)


def read_until(process, words):
    """Return the first line of a command's progress that has these words."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(words)
