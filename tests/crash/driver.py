"""Run dlcloud commands in forked children that are killed with SIGKILL at a chosen point.

A point is the moment before or after an API call, or before or after a write to the store. The driver imports
everything once and forks, so that a run costs no start-up. It reads lines of {"argv": [...], "kill_at": n,
"kill_on": name}, and kills at the n-th point, at the first of that name, or nowhere (0, ""). It answers
{"status": exit status or -9, "points": [names of the points that were passed]}.
"""

import gc
import json
import os
import signal
import sys
import tempfile
import threading

from botocore.client import BaseClient

import dlcloud.cli
import dlcloud.cloud
import dlcloud.ssh
from dlcloud.cli import main as cli
from dlcloud.launch import acquire, managed
from dlcloud.store.database import Database
from tests.prefork import fork_daemons
from tests.preloading import preload


class Killer:
    """Counts the points of one run and kills the process at one of them."""

    def __init__(self, kill_at, kill_on, trail):
        self._kill_at = kill_at
        self._kill_on = kill_on
        self._trail = trail
        self._passed = 0
        self._lock = threading.Lock()

    def point(self, name):
        with self._lock:
            self._passed += 1
            os.write(self._trail, f"{name}\n".encode())
            if self._passed == self._kill_at or name == self._kill_on:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function, name):
        """Return a function with a point before and one after it; `name` makes the name of its arguments."""

        def wrapped(*arguments, **keywords):
            call = name(arguments)
            self.point(f"before {call}")
            answer = function(*arguments, **keywords)
            self.point(f"after {call}")
            return answer

        return wrapped


def child(order, trail, output):
    """Be one dlcloud command."""
    killer = Killer(order["kill_at"], order["kill_on"], trail)
    BaseClient._make_api_call = killer.around(BaseClient._make_api_call, lambda given: given[1])
    Database.write = killer.around(Database.write, lambda given: " ".join(given[1].split()[:3]))
    # The lists of the local EC2 are consistent at once: waiting as for AWS's would gain nothing.
    managed.CONSISTENCY_WINDOW_S = 0.5
    acquire.STALE_FOLDER_AGE_S = 0.0
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["dlcloud", *order["argv"]]
    cli.main()


def run(order):
    """Fork, wait, and return how the child ended."""
    with tempfile.TemporaryFile() as trail, tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                child(order, trail.fileno(), output.fileno())
            except SystemExit as ended:
                status = ended.code or 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, waited = os.waitpid(pid, 0)
        for stream in (trail, output):
            stream.seek(0)
        return {
            "status": -9 if os.WIFSIGNALED(waited) else os.WEXITSTATUS(waited),
            "points": trail.read().decode().splitlines(),
            "output": output.read().decode(errors="replace"),
        }


def main():
    """Serve orders until there are no more."""
    preload(dlcloud.cli, dlcloud.cloud, dlcloud.ssh)
    gc.collect()
    gc.freeze()  # a child's collections would copy every page of what is imported
    fork_daemons(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)  # noqa: T201  a program


if __name__ == "__main__":
    main()
