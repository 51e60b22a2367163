"""Keep the checkpoints of a job's program while it runs: python3 -I -S checkpoints.py VERB FOLDER ...

keep FOLDER             `job.py` starts this next to the program, and writes its exit status to stdin
notice FOLDER SECONDS REASON ...   ask for the program's end within so many seconds
stored FOLDER NUMBER    the copy of a state is complete elsewhere: remove it here, with older ones
drop FOLDER NUMBER      a state cannot be copied, as a file of it has changed: remove it
restore FOLDER          put the files of FOLDER/checkpoints/restore.json into FOLDER/work, whole or not at all

FOLDER/checkpoints.json says what is kept. A *state* is all files that its patterns match. FOLDER/checkpoints
has `state-NUMBER.json`, which names each file with its size and digest, and `objects/DIGEST`, the contents. A
state is published by its name, after nothing of it has changed for some seconds and while no process has a
file of it open for writing; FOLDER/records.jsonl has {"record": "checkpoint", "number", "files", "bytes"}.

At an interruption notice, a rebalance recommendation, the end of the budget, or when asked, it has {"record":
"notice", "reason", "seconds"}, and FOLDER/records.jsonl.notice lets the harness ask the program to stop. What
the program writes until then is a state of its own, marked `ended`.
"""

import contextlib
import datetime as dt
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import stat
import sys
import time
import typing
import urllib.parse

POLL_S = 0.5
QUIET = ((0.0, 3.0), (5.0, 1.0), (10.0, 0.0))
"""Seconds for which nothing may have changed, by how long a state has been waited for: a program that writes
all the time is copied between two of its writes."""
SAVE_S = 20.0
"""Before the end of the instance: from then on what is there is copied."""
SETTLE_S = 5.0
"""At a notice: for a write that has begun, before the program is asked to stop."""
BUDGET_S = 120.0
"""Before the end of its budget, an instance has the notice that EC2 gives before an interruption."""
METADATA_S = 2.0
"""Source: EC2 user guide, "Spot Instance interruption notices": every 5 seconds at most."""
METADATA = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
NOTICE_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
EC2_NOTICE_S = 120.0
TOKEN_S = 300
TIMEOUT_S = 2.0
CHUNK = 1 << 20
KEPT_FREE = 0.1
"""Share of the disk that copies leave free; where there is less, a file is linked instead."""
NICE = 19
SCAN_SHARE = 0.02
"""Of the time, at most, in which the folders are looked through."""

Fingerprint = typing.Dict[str, typing.Tuple[typing.Any, ...]]


class Notice(typing.NamedTuple):
    """Why the program is to stop, and when its instance ends, by the monotonic clock."""

    reason: str
    ends_at: float


class Keeper:
    """Publishes states of one job."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.work, self.own = folder, (folder / "work").resolve(), folder / "checkpoints"
        self.options = json.loads((folder / "checkpoints.json").read_text())
        self.objects = self.own / "objects"
        self.objects.mkdir(parents=True, exist_ok=True)
        numbers = [number_of(path) for path in self.own.glob("state-*.json")]
        self.number = max([int(self.options.get("number", 0)), *numbers])
        self.seen = self.last = scan(self.work, self.options["patterns"])
        self.changed_at = self.waiting_since = time.monotonic()
        self.digests: dict[tuple[typing.Any, ...], str] = {}

    def poll(self) -> None:
        """Publish what is there, if it is new and has settled."""
        now = time.monotonic()
        present = scan(self.work, self.options["patterns"])
        if present != self.seen:
            if self.seen == self.last:
                self.waiting_since = now
            self.seen, self.changed_at = present, now
        if present == self.last:
            self.waiting_since = now
        needed = [quiet for waited, quiet in QUIET if now - self.waiting_since >= waited][-1]
        if now - self.changed_at >= needed:
            self.take(present)

    def take(self, present: "Fingerprint | None" = None, *, ended: bool = False) -> bool:
        """Publish what is there; False if it is not new, or changes meanwhile.

        `ended`: the program was asked to stop.
        """
        present = scan(self.work, self.options["patterns"]) if present is None else present
        if not present or present == self.last or is_open(self.work, present):
            return False
        with locked(self.own):
            try:
                files = {name: self.copy(name) for name, found in present.items() if found[0] == "file"}
            except OSError as error:
                print(f"dlcloud: no copy of the checkpoints: {error}", flush=True)
                return False
            links = {name: found[1] for name, found in present.items() if found[0] == "link"}
            if scan(self.work, self.options["patterns"]) != present or is_open(self.work, present):
                return False  # what was copied of it is used by the next state, or removed with it
            self.number, self.last = self.number + 1, present
            self.waiting_since = time.monotonic()
            waiting = sorted(self.own.glob("state-*.json"), key=number_of)
            for path in waiting[1:]:  # the first one may be on its way
                path.unlink()
            made_at = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
            state = {"schema": 1, "number": self.number, "made_at": made_at, "ended": ended}
            write(
                self.own / f"state-{self.number}.json", json.dumps({**state, "files": files, "links": links})
            )
        size = sum(entry["size"] for entry in files.values())
        self.record(record="checkpoint", number=self.number, files=len(files), bytes=size, ended=ended)
        return True

    def copy(self, name: str) -> "dict[str, typing.Any]":
        """Copy a file to its digest, unless it is there; return its entry in the manifest."""
        path = self.work / name
        found = path.stat()
        identity = (name, found.st_ino, found.st_size, found.st_mtime_ns)
        digest = self.digests.get(identity, "")
        is_here = bool(digest) and (self.objects / digest).exists()
        if not is_here and (not digest or digest not in stored_digests(self.own)):
            digest = self.digests[identity] = self.copy_content(path, found.st_size)
        return {"size": found.st_size, "sha256": digest, "mode": stat.S_IMODE(found.st_mode)}

    def copy_content(self, path: pathlib.Path, size: int) -> str:
        usage = shutil.disk_usage(self.own)
        has_room = usage.free - size > KEPT_FREE * usage.total
        unfinished = self.own / "unfinished"
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        if not has_room:
            os.link(path, unfinished)
        digest = hashlib.sha256()
        copied = unfinished if has_room else pathlib.Path(os.devnull)
        with path.open("rb") as source, copied.open("wb") as target:
            while piece := source.read(CHUNK):
                digest.update(piece)
                target.write(piece)
        unfinished.replace(self.objects / digest.hexdigest())
        return digest.hexdigest()

    def record(self, **values: object) -> None:
        """Append a record by one write: the program's are not mixed with it."""
        file = os.open(self.folder / "records.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
            os.write(file, (json.dumps({"schema": 1, **values, "time": now}) + "\n").encode())
        finally:
            os.close(file)


def keep(folder: pathlib.Path) -> None:
    """Publish states until the program has ended, and one of what it left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after the program
    os.nice(NICE)
    keeper, watch = Keeper(folder), Watch(folder)
    notice: "Notice | None" = None
    is_asked, pause_s = False, POLL_S
    while (status := ended_status(pause_s)) is None:
        began = time.monotonic()
        notice = notice or watch.look()
        if notice is not None and not is_asked:
            left = max(0.0, notice.ends_at - time.monotonic())
            keeper.record(record="notice", reason=notice.reason, seconds=round(left, 1))
            ask_to_stop(keeper, notice)
            is_asked = True
        elif notice is not None and time.monotonic() >= notice.ends_at - SAVE_S:
            keeper.take(ended=True)
        else:
            keeper.poll()
        pause_s = max(POLL_S, (time.monotonic() - began) / SCAN_SHARE if notice is None else POLL_S)
    if notice is not None and is_caught(folder):
        keeper.take(ended=True)
    elif status and time.time() - newest_change(keeper.work, keeper.seen) > QUIET[0][1]:
        keeper.take()


def ask_to_stop(keeper: Keeper, notice: Notice) -> None:
    """Wait for a write that has begun, publish what is there, and let the harness ask the program to stop."""
    until = min(time.monotonic() + SETTLE_S, notice.ends_at - SAVE_S)
    while not keeper.take():
        present = scan(keeper.work, keeper.options["patterns"])
        if present == keeper.last or not present or time.monotonic() >= until:
            break
        time.sleep(POLL_S / 10)
    write(keeper.folder / "records.jsonl.notice", json.dumps({"run": keeper.options.get("on_notice", "")}))


def is_caught(folder: pathlib.Path) -> bool:
    """True if the program had its own way to stop: otherwise a write may have been cut off by the signal."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((folder / "records.jsonl.asked").read_text())["catches"])
    return False


def newest_change(work: pathlib.Path, present: Fingerprint) -> float:
    """Return when the newest of some files was written."""
    times = [0.0]
    for name in present:
        with contextlib.suppress(OSError):
            times.append((work / name).lstat().st_mtime)
    return max(times)


def ended_status(timeout_s: float) -> "int | None":
    """Return the program's exit status once `job.py` has written it; None after a time without."""
    if not select.select([0], [], [], timeout_s)[0]:
        return None
    text = os.read(0, CHUNK)
    return int(text) if text.strip().isdigit() else 1


class Watch:
    """Looks for what ends the program early."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.request = folder / "checkpoints" / "notice.json"
        self.has_rebalance = json.loads((folder / "checkpoints.json").read_text()).get("on_rebalance", False)
        self.budget = pathlib.Path(os.environ.get("DLCLOUD_ROOT", "") + "/var/lib/dlcloud/ends-at")
        self.token, self.token_until, self.next_at = "", 0.0, 0.0

    def look(self) -> "Notice | None":
        """Return the first notice that there is."""
        now = time.monotonic()
        with contextlib.suppress(FileNotFoundError, ValueError):
            asked = json.loads(self.request.read_text())
            return Notice(asked["reason"], now + asked["seconds"] + SAVE_S)
        with contextlib.suppress(OSError, ValueError):
            left = float(self.budget.read_text()) - time.time()
            if left <= BUDGET_S:
                return Notice("the end of the budget", now + left)
        if now < self.next_at:
            return None
        self.next_at = now + METADATA_S
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            if (found := self.fetch(NOTICE_PATH)) is not None:
                return Notice("an interruption notice", now + seconds_until(found.get("time")))
            if self.has_rebalance and self.fetch(REBALANCE_PATH) is not None:
                return Notice("a rebalance recommendation", now + EC2_NOTICE_S)
        return None

    def fetch(self, path: str) -> "dict[str, typing.Any] | None":
        """Return a document of the metadata service; None for one that is not there."""
        if time.monotonic() >= self.token_until:
            header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self.token = self.ask("PUT", "/latest/api/token", header)[1].strip()
            self.token_until = time.monotonic() + 0.8 * TOKEN_S
        status, text = self.ask("GET", path, {"X-aws-ec2-metadata-token": self.token})
        if status == http.client.UNAUTHORIZED:
            self.token_until = 0.0
        return json.loads(text) if status == http.client.OK else None

    @staticmethod
    def ask(method: str, path: str, headers: "dict[str, str]") -> "tuple[int, str]":
        endpoint = urllib.parse.urlsplit(os.environ.get(METADATA) or "http://169.254.169.254")
        host, port = endpoint.hostname or "", endpoint.port or 80
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(1 << 16).decode("utf-8", "replace")
        finally:
            connection.close()


def seconds_until(text: object) -> float:
    """Return how far off a time of EC2's is; of one that cannot be read, or of none, what EC2 promises."""
    try:
        text = re.sub("Z$", "+00:00", str(text))  # Python 3.10 does not read it
        moment = dt.datetime.fromisoformat(text)
        return (moment - dt.datetime.now(dt.timezone.utc)).total_seconds()
    except (ValueError, TypeError):
        return EC2_NOTICE_S


def scan(work: pathlib.Path, patterns: "list[str]") -> Fingerprint:
    """Return the files and the links that patterns match, with what changes when they do."""
    found: Fingerprint = {}
    for pattern in patterns:
        with contextlib.suppress(OSError):  # a folder that the program removes meanwhile
            for match in work.glob(pattern.rstrip("/")):
                for path in below(match):
                    name = str(path.relative_to(work))
                    if name not in found and (entry := look_at(path, work)):
                        found[name] = entry
    return found


def below(path: pathlib.Path) -> "typing.Iterator[pathlib.Path]":
    """Yield a file, or the files and links below a folder."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for parent, folders, files in os.walk(path):
        yield from (pathlib.Path(parent, name) for name in files)
        yield from filter(pathlib.Path.is_symlink, (pathlib.Path(parent, name) for name in folders))


def look_at(path: pathlib.Path, work: pathlib.Path) -> "tuple[typing.Any, ...]":
    """Describe a file, or a link that stays below `work`; empty for what is neither, or is gone."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            target = path.resolve()
            is_inside = work in target.parents
            return ("link", os.path.relpath(target, path.parent)) if is_inside else ()
        if stat.S_ISREG(found.st_mode):
            return ("file", found.st_ino, found.st_size, found.st_mtime_ns)
    return ()


def is_open(work: pathlib.Path, present: Fingerprint) -> bool:
    """True if a process has one of the files open for writing. Source: proc_pid_fdinfo(5)."""
    names = {str(work / name) for name in present}
    for folder in pathlib.Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for descriptor in folder.iterdir():
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    if str(descriptor.readlink()) in names:
                        info = folder.with_name("fdinfo").joinpath(descriptor.name).read_text()
                        flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                        if int(flags.split()[1], 8) & os.O_ACCMODE:
                            return True
    return False


def notice(folder: pathlib.Path, seconds: str, *reason: str) -> None:
    """Ask for the program's end."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    asked = {"seconds": float(seconds), "reason": " ".join(reason)}
    write(folder / "checkpoints" / "notice.json", json.dumps(asked))


def stored(folder: pathlib.Path, number: str) -> None:
    """Remember what another place has of this job, and remove that here."""
    own = folder / "checkpoints"
    with locked(own):
        (own / f"state-{number}.json").replace(own / "stored.json")
        remove_unused(own, below_number=int(number))


def drop(folder: pathlib.Path, number: str) -> None:
    own = folder / "checkpoints"
    with locked(own):
        remove_unused(own, below_number=int(number) + 1)


def remove_unused(own: pathlib.Path, *, below_number: int) -> None:
    """Remove states before one, and contents that no other state has."""
    used = set()
    for path in own.glob("state-*.json"):
        if number_of(path) < below_number:
            path.unlink()
        else:
            used |= {entry["sha256"] for entry in json.loads(path.read_text())["files"].values()}
    for path in (own / "objects").iterdir():
        if path.name not in used:
            path.unlink()


def restore(folder: pathlib.Path) -> None:
    """Put a state into FOLDER/work, after each of its contents was checked."""
    own, work = folder / "checkpoints", folder / "work"
    state = json.loads((own / "restore.json").read_text())
    names = [*state["files"], *state["links"]]
    patterns = json.loads((folder / "checkpoints.json").read_text())["patterns"]
    others = scan(work.resolve(), patterns).keys() - set(names)
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            sys.exit(f"{name!r} is not below the working folder")
    for name, entry in state["files"].items():
        if digest_of(own / "objects" / entry["sha256"]) != entry["sha256"]:
            sys.exit(f"the content of {name} was not copied whole")
    for name in (*names, *others):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    for name, entry in state["files"].items():
        shutil.copyfile(own / "objects" / entry["sha256"], work / name)
        (work / name).chmod(entry["mode"])
    for name, target in state["links"].items():
        (work / name).symlink_to(target)
    (own / "restore.json").replace(own / "stored.json")
    remove_unused(own, below_number=0)


def digest_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def stored_digests(own: pathlib.Path) -> "set[str]":
    """Return the digests of what another place has."""
    try:
        return {entry["sha256"] for entry in json.loads((own / "stored.json").read_text())["files"].values()}
    except FileNotFoundError:
        return set()


@contextlib.contextmanager
def locked(own: pathlib.Path) -> "typing.Iterator[None]":
    with (own / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def number_of(path: pathlib.Path) -> int:
    return int(path.stem.partition("-")[2])


def write(path: pathlib.Path, text: str) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text)
    unfinished.replace(path)


def main() -> None:
    """Run the verb of the command line."""
    verb, folder, *rest = sys.argv[1:]
    verbs: "dict[str, typing.Callable[..., None]]"
    verbs = {"keep": keep, "notice": notice, "stored": stored, "drop": drop, "restore": restore}
    verbs[verb](pathlib.Path(folder).absolute(), *rest)


if __name__ == "__main__":
    main()
