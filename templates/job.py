"""Run a program on an instance independently of connections: python3 -I -S job.py VERB FOLDER ...

start FOLDER [-]            run `sh FOLDER/command` detached in FOLDER/work; a second start does nothing.
                            With `-`, stdin is JSON: {"variables": {NAME: TEXT}, "secrets": {NAME: TEXT},
                            "work": folder whose copy is FOLDER/work, "links": {NAME: target},
                            "files": {NAME: TEXT}}; names are of FOLDER, the last three may be missing
supervise FOLDER            run the program in the foreground; stdin as of `start`
follow FOLDER NAME OFFSET   print FOLDER/NAME from a byte offset, as it grows, until the program has ended
state FOLDER                print JSON: {"state": new, running, ended or lost, "exit_status": int or null}
written FOLDER NAME...      print JSON: [[path, bytes, other], ...] of the files below FOLDER/work that are
                            new or changed since the command was sent, but in folders of these names; a
                            link that stays below it counts as the file, or the files, that it leads to;
                            `other` is another path of the same file, listed before, or empty
stop FOLDER                 end the program and its child processes, and run `sh FOLDER/stop` if there is one

If there is FOLDER/checkpoints.json, `checkpoints.py` keeps the program's checkpoints; the variable
DLCLOUD_CHECKPOINTS is their first folder. A program that cannot power the instance off, as in a container,
asks for it: it makes FOLDER/power-off.
The program's output goes to FOLDER/log, its exit status to FOLDER/exit_status, written atomically. Secrets go
from memory to memory: no file, no command line has them, and the log has *** in their place.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time
import types
import typing

POLL_S = 0.1
DRAIN_S = 1.0
GRACE_S = 5.0
MOST_GENERATIONS = 100
TIMES = "log.times"
TIMES_S = 5.0
PR_SET_CHILD_SUBREAPER = 36  # Source: Linux, include/uapi/linux/prctl.h
CHUNK = 1 << 16
NAMES = "DLCLOUD_SECRETS"
POWER_OFF = ("systemctl", "--no-wall", "poweroff", "-i")  # -i: whatever program locks it


def start(folder: pathlib.Path, source: str = "") -> None:
    """Start the supervisor, unless the job was started before."""
    given = json.loads(sys.stdin.buffer.read() or b"{}") if source else {}
    if "files" in given:
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "pid").exists():
            return
        lay_out(folder, given)
        supervisor = os.fork()  # an interpreter of its own would take as long as the rest
        if not supervisor:
            become_supervisor(folder, given, lock)
        write(folder / "pid", str(supervisor))


def lay_out(folder: pathlib.Path, given: "dict[str, typing.Any]") -> None:
    """Make what a job's folder is to have; a second time changes nothing."""
    work = folder / "work"
    if "work" in given and not work.exists():
        copy = folder / "work.new"
        subprocess.run(["rm", "-rf", copy], check=True)
        subprocess.run(["cp", "-a", "--reflink=auto", given["work"], copy], check=True)
        copy.rename(work)
    work.mkdir(exist_ok=True)
    for name, target in given.get("links", {}).items():
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(pathlib.Path(target).absolute())
    for name, text in given.get("files", {}).items():
        write(folder / name, text)


def become_supervisor(folder: pathlib.Path, given: "dict[str, typing.Any]", lock: "typing.TextIO") -> None:
    """Run the program in this process, which belongs to no session any more; never return."""
    status = 1
    try:
        os.setsid()
        os.close(lock.fileno())  # the parent's stays locked
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, source in enumerate((null, log, log)):
            os.dup2(source, number)
        os.close(log)
        os.close(null)
        run_program(folder, given)
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join()  # what the program left behind may print on
        status = 0
    except BaseException:  # noqa: BLE001 - it must not return into the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def supervise(folder: pathlib.Path) -> None:
    """Run the program in the foreground; its environment comes as for `start`."""
    run_program(folder, json.loads(sys.stdin.buffer.read() or b"{}"))


def run_program(folder: pathlib.Path, given: "dict[str, typing.Any]") -> None:
    """Run the program and record its exit status."""
    secrets = given.get("secrets", {})
    names = {NAMES: " ".join(secrets)} if secrets else {}
    adopt_orphans()
    masking = import_masking() if secrets else None  # before the program starts: none runs unmasked
    keeper, kept = start_keeper(folder)
    program = subprocess.Popen(
        ["sh", str(folder / "command")],
        cwd=folder / "work",
        stdin=subprocess.DEVNULL,
        env={**os.environ, **given.get("variables", {}), **secrets, **names, **kept},
        stdout=subprocess.PIPE if secrets else None,
        stderr=subprocess.STDOUT if secrets else None,
        bufsize=0,
    )
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    ended = threading.Event()
    threading.Thread(target=note_times, args=(folder, ended)).start()
    copying = threading.Thread(target=copy_masked, args=(program.stdout, masking, list(secrets.values())))
    if secrets:
        copying.start()
    status = program.wait()
    ended.set()
    if secrets:
        # A process that it left behind may hold its output open: the job has ended all the same.
        copying.join(DRAIN_S)
    if keeper is not None:
        keeper.communicate(str(abs(status)).encode())  # its last state is complete before the job has ended
    end_descendants()
    write(folder / "exit_status", str(status if status >= 0 else 128 - status))
    if (folder / "power-off").exists():
        subprocess.run([*([] if os.getuid() == 0 else ["sudo", "-n"]), *POWER_OFF], check=False)


def start_keeper(folder: pathlib.Path) -> "tuple[subprocess.Popen[bytes] | None, dict[str, str]]":
    """Start what keeps the program's checkpoints, if any; return it, and variables of the program."""
    try:
        kept = json.loads((folder / "checkpoints.json").read_text())
    except FileNotFoundError:
        return None, {}
    first = folder / "work" / kept["first"]
    first.mkdir(parents=True, exist_ok=True)
    resume = {"DLCLOUD_RESUME": "auto", "DLCLOUD_RESUME_RUN": kept["up"]} if kept["resume"] else {}
    variables = {"DLCLOUD_CHECKPOINTS": str(first), **resume}
    if not kept.get("is_watched", True):
        return None, variables
    program = pathlib.Path(__file__).absolute().with_name("checkpoints.py")
    words = [sys.executable, "-I", "-S", str(program), "keep", str(folder)]
    keeper = subprocess.Popen(words, stdin=subprocess.PIPE)
    return keeper, variables


def note_times(folder: pathlib.Path, ended: threading.Event) -> None:
    """Note how long the log was when: `TIME BYTES`, a line each time it has grown (`logs --since`)."""
    noted, is_last = -1, False
    while True:
        with contextlib.suppress(OSError):  # without a log, or on a full disk
            size = (folder / "log").stat().st_size
            if size != noted:
                with (folder / TIMES).open("a") as times:
                    times.write(f"{time.time():.0f} {size}\n")
                noted = size
        if is_last:
            return
        is_last = ended.wait(TIMES_S)


def adopt_orphans() -> None:
    """Become the parent of what the program leaves behind, in whatever session: Linux, prctl(2)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(root: "int | None" = None) -> None:
    """Kill every process below one, by default this one, until none is left."""
    root = os.getpid() if root is None else root
    for _ in range(MOST_GENERATIONS):
        processes = descendants(root)
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not processes:
            return
        time.sleep(POLL_S / 10)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # an orphan that we adopted


def descendants(root: int) -> "list[int]":
    """Return the processes below one, but zombies and other jobs; none on macOS, which has no /proc."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found = [root]
    for process in found:
        found += [child for child in children.get(process, []) if not is_job(child)]
    return found[1:]


def is_job(process: int) -> bool:
    """Return True for the supervisor of a job: one that a program started, as a standby does, outlives it."""
    with contextlib.suppress(OSError):
        return b"job.py\0start\0" in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def import_masking() -> "types.ModuleType":
    """Return the module that the launcher sent beside this program."""
    path = pathlib.Path(__file__).absolute().with_name("masking.py")
    spec = importlib.util.spec_from_file_location("masking", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_masked(output: "typing.BinaryIO", masking: "types.ModuleType", secrets: "list[str]") -> None:
    """Copy a program's output to the log, without the secrets, their lines and their other forms."""
    texts = [text.encode(errors="surrogateescape") for text in masking.masked_texts(secrets)]
    replacement = masking.MASK.encode()
    kept = b""
    while chunk := output.read(CHUNK):
        kept += chunk
        end = masking.complete_length(kept, texts)
        sys.stdout.buffer.write(masking.mask_text(kept[:end], texts, replacement))
        sys.stdout.buffer.flush()
        kept = kept[end:]
    sys.stdout.buffer.write(masking.mask_text(kept, texts, replacement))
    sys.stdout.buffer.flush()


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
        supervisor = int((folder / "pid").read_text())
    except FileNotFoundError:
        return {"state": "new", "exit_status": None}
    if is_running(supervisor):
        return {"state": "running", "exit_status": None}
    # It may have ended between the two checks.
    with contextlib.suppress(FileNotFoundError):
        return {"state": "ended", "exit_status": int((folder / "exit_status").read_text())}
    return {"state": "lost", "exit_status": None}


def is_running(process: int) -> bool:
    """Return False also for a zombie: process 1 of a container may never reap what it adopted."""
    try:
        os.kill(process, 0)
        status = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not pathlib.Path("/proc/self/stat").exists()  # macOS has no /proc
    return status.rpartition(")")[2].split()[0] != "Z"


def written(folder: pathlib.Path, *skipped: str) -> "list[tuple[str, int, str]]":
    """Return the files that the program wrote, with their sizes and, if listed before, that name."""
    work, command = (folder / "work").resolve(), folder / "command"
    since = command.stat().st_mtime_ns if command.exists() else 0
    listed: list[tuple[str, int, str]] = []
    first: dict[tuple[int, int], str] = {}
    for path in entries(work, skipped):
        with contextlib.suppress(FileNotFoundError):
            for name, real in leads_to(path, work, skipped):
                status = real.stat()
                # The time at which a file states that it was written can be set back; this one cannot.
                changed = max(path.lstat().st_ctime_ns, status.st_ctime_ns)
                if stat.S_ISREG(status.st_mode) and changed > since:
                    shown, identity = str(name.relative_to(work)), (status.st_dev, status.st_ino)
                    listed.append((shown, status.st_size, first.get(identity, "")))
                    first.setdefault(identity, shown)
    return listed


def entries(top: pathlib.Path, skipped: "tuple[str, ...]") -> "typing.Iterator[pathlib.Path]":
    """Yield the files and links below a folder."""
    for parent, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in [*folders, *sorted(files)]:
            path = pathlib.Path(parent, name)
            if name in files or path.is_symlink():
                yield path


def leads_to(
    path: pathlib.Path, work: pathlib.Path, skipped: "tuple[str, ...]"
) -> "list[tuple[pathlib.Path, pathlib.Path]]":
    """Return the names that a path gives to files below `work`, each with its file; of a folder, several."""
    if not path.is_symlink():
        return [(path, path)]
    target = path.resolve()
    if work not in target.parents or target in path.parents:
        return []  # it leads out of the folder, or around in a circle
    if not target.is_dir():
        return [(path, target)]
    below = [entry for entry in entries(target, skipped) if not entry.is_symlink()]
    return [(path / entry.relative_to(target), entry) for entry in below]


def stop(folder: pathlib.Path) -> None:
    """End the job's process group: SIGTERM, then SIGKILL."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        group = int((folder / "pid").read_text())
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while state(folder)["state"] == "running" and time.monotonic() < deadline:
            time.sleep(POLL_S)
        end_descendants(group)
        os.killpg(group, signal.SIGKILL)
    if (folder / "stop").exists():
        subprocess.run(["sh", str(folder / "stop")], check=False, stdin=subprocess.DEVNULL)


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
        if verb in {"state", "written"}:
            print(json.dumps({"state": state, "written": written}[verb](folder, *rest)))
        else:
            {"start": start, "supervise": supervise, "follow": follow, "stop": stop}[verb](folder, *rest)


main()
