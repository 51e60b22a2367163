"""Run a program on an instance independently of connections: python3 -I -S job.py VERB FOLDER ...

start FOLDER                run `sh FOLDER/command` detached in FOLDER/work; a second start does nothing
follow FOLDER NAME OFFSET   print FOLDER/NAME from a byte offset, as it grows, until the program has ended
state FOLDER                print JSON: {"state": new, running, ended or lost, "exit_status": int or null}
stop FOLDER                 end the program and its child processes

The program's output goes to FOLDER/log, its exit status to FOLDER/exit_status, written atomically.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

POLL_S = 0.1
GRACE_S = 5.0
CHUNK = 1 << 16


def start(folder: pathlib.Path) -> None:
    """Start the supervisor, unless the job was started before."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "pid").exists():
            return
        (folder / "work").mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, "supervise", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        write(folder / "pid", str(supervisor.pid))


def supervise(folder: pathlib.Path) -> None:
    """Run the program and record its exit status."""
    program = subprocess.Popen(["sh", str(folder / "command")], cwd=folder / "work", stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    status = program.wait()
    write(folder / "exit_status", str(status if status >= 0 else 128 - status))


def follow(folder: pathlib.Path, name: str, offset: str) -> None:
    """Print a file as it grows, until the job has ended and all of it is printed."""
    position = int(offset)
    while True:
        ended = state(folder)["state"] != "running"
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as growing:
            growing.seek(position)
            while chunk := growing.read(CHUNK):
                sys.stdout.buffer.write(chunk)
                position += len(chunk)
        sys.stdout.buffer.flush()
        if ended:
            return
        time.sleep(POLL_S)


def state(folder: pathlib.Path) -> "dict[str, str | int | None]":
    """Return the job's state and exit status."""
    with contextlib.suppress(FileNotFoundError):
        return {"state": "ended", "exit_status": int((folder / "exit_status").read_text())}
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except FileNotFoundError:
        return {"state": "new", "exit_status": None}
    except ProcessLookupError:
        # It may have ended between the two checks.
        with contextlib.suppress(FileNotFoundError):
            return {"state": "ended", "exit_status": int((folder / "exit_status").read_text())}
        return {"state": "lost", "exit_status": None}
    return {"state": "running", "exit_status": None}


def stop(folder: pathlib.Path) -> None:
    """End the job's process group: SIGTERM, then SIGKILL."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        group = int((folder / "pid").read_text())
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while state(folder)["state"] == "running" and time.monotonic() < deadline:
            time.sleep(POLL_S)
        os.killpg(group, signal.SIGKILL)


def write(path: pathlib.Path, text: str) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def main() -> None:
    """Run the verb of the command line."""
    verb, folder, *rest = sys.argv[1:]
    folder = pathlib.Path(folder).absolute()
    with contextlib.suppress(BrokenPipeError):
        if verb == "state":
            print(json.dumps(state(folder)))
        else:
            {"start": start, "supervise": supervise, "follow": follow, "stop": stop}[verb](folder, *rest)


main()
