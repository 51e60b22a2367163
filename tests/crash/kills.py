"""Kill or interrupt commands at random moments, go on as a user would, and count what is left or lost.

    PYTHONPATH=. python tests/crash/kills.py kill --cases 100 --seed 48

kill        `up`, `resize`, `up --detach` and controllers: kill -9
ctrl-c      commands, each at its pseudo-terminal: one Ctrl-C or two
experiment  signals, killed resizes, lost instances and killed trials, killed controllers

A case is repeated by its number (`--first`) and the seed. A row a case:

    moment   seconds from the start of the command to the first signal
    left     instances that are up after the next command, or that an interrupted command did not name
    lost     runs that were stored and are gone, and trials without a result in the end
    doubled  runs with more than one result, and trials that were stored as done more than once
    again    trials that were computed to their end again; right where an instance was lost before it told
"""

import argparse
import fcntl
import json
import os
import pty
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

from tests import leftovers
from tests.e2e.terminal import TIMEOUT_S, User, await_handlers, wait_until

LONGEST_S = {
    "up": 8.0,
    "resize": 6.0,
    "detach": 20.0,
    "controller": 6.0,
    "exec": 1.5,
    "status": 1.5,
    "bench": 8.0,
}
"""What the commands take, about; later signals meet none."""
WAIT_S = 180.0
"""Most for an experiment that is left alone to end."""
TRIALS = 6
NUMBERS = ("left", "lost", "doubled", "again")
EXPERIMENT = """\
name: {name}
cloud: local
instances: {{types: [c5.xlarge], count: {{min: 1, max: 3}}}}
workload: {{command: python3 trial.py, files: trial.py, facts: {{score: 'score (.*)'}}}}
experiment: {{matrix: {{x: {values}}}, metric: score, attempts: 100}}
"""
TRIAL = """\
import socket, sys, time
time.sleep(0.4)
print("score", sys.argv[2], flush=True)
socket.create_connection(("127.0.0.1", {port})).sendall(b"{name} " + sys.argv[2].encode())
"""


class UnexpectedError(Exception):
    """A command did something else than it should have."""


class Ends:
    """Counts the trials that ran to their end: they say so themselves."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._server.getsockname()[1]
        self.counts = Counter()
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self):
        while True:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                self.counts[connection.recv(100)] += 1

    def again(self, name):
        ends = [count for trial, count in self.counts.items() if trial.startswith(f"{name} ".encode())]
        return sum(ends) - len(ends)


class Case:
    """One command that is hit, in the home of a user, and what followed."""

    def __init__(self, user, ends, chance, number):
        self.user, self.ends, self.chance = user, ends, chance
        self.name = f"case-{number}"
        self.kind, self.moment_s, self.status, self.then = "", 0.0, None, ""
        self.found = dict.fromkeys(NUMBERS, 0)
        self._stored = set()

    def kill(self, number):
        """Kill a command, or the controller of a cluster; the next command ends or completes what it left."""
        self.kind = ("up", "resize", "detach", "controller")[number % 4]
        user, chance = self.user, self.chance
        is_left_alone = self.kind in {"detach", "controller"}
        recipe = self.experiment(3) if is_left_alone else self.recipe()
        again = ("up", recipe, "--yes", "--name", self.name, *["--detach"] * is_left_alone)
        if self.kind == "controller":
            user.run(*again)
            self.moment_s = chance.uniform(0, LONGEST_S["controller"])
            time.sleep(self.moment_s)
            self.status = kill_controllers(user, self.name)
        else:
            if self.kind == "resize":
                user.run("up", recipe, "--keep", "--name", self.name)
            words = ("resize", self.name, str(chance.randint(1, 3)), "--yes")
            self.hit(user.begin(*(words if self.kind == "resize" else again)), signal.SIGKILL)
        self.look()
        if is_left_alone:
            self.then = "up"
            user.run(*again, expect=None)
            wait_until(lambda: state(user, self.name) in {"ready", ""}, seconds=WAIT_S)
            user.run("down", self.name, "--yes", expect=None)
            self.judge_trials(3)
        else:
            self.then = "down" if self.kind == "resize" else chance.choice(("down", "up", "gc"))
            words = ("gc", "--cloud", "local", "--region", "us-east-1", "--yes")
            if self.then != "down":
                user.run(*(again if self.then == "up" else words))
        self.finish()

    def interrupt(self, number):
        """Press Ctrl-C at a terminal once or twice; what is up afterwards was said to be."""
        self.kind = ("up", "status", "resize", "exec", "detach", "bench")[number % 6]
        user, chance, name = self.user, self.chance, self.name
        recipe = self.recipe()
        if self.kind in {"status", "resize", "exec"}:
            user.run("up", recipe, "--keep", "--name", name)
        words = {
            "up": ("up", recipe, "--name", name),
            "status": ("status",),
            "resize": ("resize", name, str(chance.randint(1, 3)), "--yes"),
            "exec": ("exec", name, "sleep", "0.3"),
            "detach": ("up", recipe, "--detach", "--yes", "--name", name),
            "bench": ("bench", "-i", "c5.xlarge", "-i", "c6i.xlarge", "--recipe", recipe, "--yes"),
        }
        printed = self.press(*words[self.kind])
        if "Traceback" in printed or self.status not in {0, 130}:
            raise UnexpectedError(f"status {self.status}\n{printed}")
        if self.status == 130 and "interrupted" not in printed:
            raise UnexpectedError(f"no line of the interruption\n{printed}")
        named = [record["instance_id"] for record in user.json("status")["result"]["records"]]
        if self.kind in {"up", "bench"}:
            named = []  # they end what they have launched
        self.found["left"] += len(set(user.alive()) - set(named))
        self.then = "down"
        self.finish()

    def lose(self, number):
        """Hit an experiment one to three times, then run it to its end."""
        self.kind = ("signals", "resize", "losses", "detach")[number % 4]
        user, path = self.user, self.experiment(TRIALS)
        up = ("up", path, "--yes", "--name", self.name, *["--detach"] * (self.kind == "detach"))
        for turn in range(self.chance.randint(1, 3)):
            process = user.begin(*up)
            if self.kind == "losses":
                self.hit(process, None)
            elif self.kind == "resize":
                time.sleep(self.chance.uniform(2, 6))
                resize = user.begin("resize", self.name, str(self.chance.randint(1, 3)), "--yes")
                self.hit(resize, signal.SIGKILL, longest_s=4.0)
                self.hit(process, signal.SIGKILL, longest_s=2.0)
            elif self.kind == "detach" and turn:
                process.communicate(timeout=TIMEOUT_S)
                time.sleep(self.chance.uniform(0, LONGEST_S["controller"]))
                kill_controllers(user, self.name)
            else:
                signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
                kinds = (signal.SIGKILL,) if self.kind == "detach" else signals
                self.hit(process, self.chance.choice(kinds), longest_s=LONGEST_S.get(self.kind, 8.0))
            self.look()
        self.then = "up"
        user.run(*up, expect=None)
        if self.kind == "detach":
            wait_until(lambda: state(user, self.name) in {"ready", ""}, seconds=WAIT_S)
            user.run("down", self.name, "--yes", expect=None)
        self.judge_trials(TRIALS)
        self.found["left"] += len(user.alive())
        self.finish()

    def recipe(self):
        """Write the recipe of a quick run on one instance or two, which can be resized."""
        path = Path(self.user.recipe(count=self.chance.randint(1, 2), name=f"{self.name}.yaml"))
        text = path.read_text().replace("name: quick", f"name: {self.name}")
        path.write_text(text)
        return str(path)

    def experiment(self, trials):
        """Write an experiment with trials that report their ends."""
        home = self.user.home
        (home / "trial.py").write_text(TRIAL.format(port=self.ends.port, name=self.name))
        path = home / f"{self.name}.yaml"
        path.write_text(EXPERIMENT.format(name=self.name, values=[*range(trials)]))
        return str(path)

    def hit(self, process, number, longest_s=None):
        """Hit a command at a random moment: by a signal, or by what it runs on (None)."""
        self.moment_s = self.chance.uniform(0, longest_s or LONGEST_S.get(self.kind, 8.0))
        time.sleep(self.moment_s)
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        elif self.chance.random() < 0.5:
            if alive := self.user.alive():
                self.user.ec2.terminate_instances(InstanceIds=[self.chance.choice(alive)])
        else:
            for trial in processes(self.user, "trial.py")[:1]:
                end(trial)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        self.status = process.returncode
        if "Traceback" in output + errors:
            raise UnexpectedError(output + errors)

    def press(self, *words):
        """Run a command at a terminal, press Ctrl-C at a random moment, sometimes twice; what it printed."""
        screen, terminal = pty.openpty()
        process = subprocess.Popen(
            [*self.user.command, *words],
            env=self.user.environment,
            cwd=self.user.home,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  this program has no locks
        )
        os.close(terminal)
        printed = bytearray()

        def read():
            with suppress(OSError):  # the terminal has ended
                while content := os.read(screen, 1 << 16):
                    printed.extend(content)

        reader = threading.Thread(target=read)
        reader.start()
        await_handlers(process)
        self.moment_s = self.chance.uniform(0, LONGEST_S[self.kind])
        time.sleep(self.moment_s)
        for _ in range(self.chance.choice((1, 1, 2))):
            with suppress(OSError):
                os.write(screen, b"\x03")
            time.sleep(self.chance.uniform(0.02, 1.5))
        self.status = process.wait(TIMEOUT_S)
        reader.join()
        os.close(screen)
        return printed.decode(errors="replace")

    def look(self):
        """Note which runs are stored as done: none may go."""
        self._stored |= {row[0] for row in runs(self.user, self.name)}

    def judge_trials(self, trials):
        """Count trials without a result, and those with several."""
        done = Counter(trial for _, trial, results in runs(self.user, self.name) if results)
        self.found["lost"] += trials - len(done)
        self.found["doubled"] += sum(done.values()) - len(done)
        self.found["again"] = self.ends.again(self.name)

    def finish(self):
        """Take everything down; count what is up all the same, and what was stored and is gone."""
        user = self.user
        user.run("down", "--all", "--yes")
        self.found["left"] += len(user.alive())
        stored = runs(user, self.name)
        self.found["lost"] += len(self._stored - {row[0] for row in stored})
        self.found["doubled"] += sum(results > 1 for *_, results in stored)
        if user.run("status").stdout != "nothing is up\n":
            raise UnexpectedError("status names what is down")


def runs(user, workload):
    """Return run, trial and number of results of the runs that are done; none before there is a store."""
    query = (
        "SELECT run_id, trial, (SELECT count(*) FROM results WHERE results.run_id = runs.run_id)"
        " FROM runs WHERE workload = ? AND state = 'done'"
    )
    path = user.home / ".dlcloud" / "store.sqlite"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as store:
        return store.execute(query, (workload,)).fetchall()
    return []


def state(user, name):
    """Return the state of a cluster as it says itself; "" without one."""
    time.sleep(0.5)  # each question takes a processor from what it waits for
    done = user.run("status", name, "--output", "json", expect=None)
    records = json.loads(done.stdout or "{}").get("result", {}).get("records", [])
    return records[0]["cluster_state"] if records else ""


def processes(user, word):
    """Return the processes of instances of a home with a word in their command lines."""
    mark, found = b"DLCLOUD_ROOT=" + os.fsencode(user.home), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = any(one.startswith(mark) for one in (entry / "environ").read_bytes().split(b"\0"))
            if own and word.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
    return found


def end(process):
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def kill_controllers(user, name):
    """Kill the controller of a cluster and what starts it; return how many processes those were."""
    found = [*processes(user, "runs/control"), *processes(user, f"--name {name}")]
    for process in found:
        end(process)
    return len(found)


def main():
    """Run the cases; exit status 1 if anything was left, lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("kill", "ctrl-c", "experiment"))
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="48")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no case after that")
    asked = parser.parse_args()
    leftovers.watch()
    totals, begun, failed = dict.fromkeys(NUMBERS, 0), time.monotonic(), 0
    cases = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        user, ends = User(Path(folder)), Ends()
        user.run("local", "start")
        try:
            write("case", "kind", "moment", "status", "then", *NUMBERS, "seconds", "load")
            for number in range(asked.first, asked.first + asked.cases):
                if time.monotonic() - begun > 60 * asked.minutes:
                    break
                case = Case(user, ends, random.Random(f"{asked.seed} {asked.what} {number}"), number)
                method = {"kill": case.kill, "ctrl-c": case.interrupt, "experiment": case.lose}[asked.what]
                started, cases = time.monotonic(), cases + 1
                try:
                    method(number)
                except (UnexpectedError, AssertionError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    write(number, case.kind, f"{case.moment_s:.2f}", "failed:", error)
                    case.found["left"] += len(user.alive())
                    user.run("down", "--all", "--yes", expect=None)
                numbers = [case.found[name] for name in NUMBERS]
                totals = {name: totals[name] + case.found[name] for name in NUMBERS}
                took = f"{time.monotonic() - started:.1f}"
                moment, load = f"{case.moment_s:.2f}", f"{os.getloadavg()[0]:.1f}"
                write(number, case.kind, moment, case.status, case.then, *numbers, took, load)
        finally:
            user.run("local", "stop", expect=None)
    write(f"seed {asked.seed}: {cases} cases of {asked.what}, {failed} failed, {totals}")
    sys.exit(any(totals[name] for name in ("left", "lost", "doubled")) or failed > 0)


def write(*words):
    sys.stdout.write("  ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
