"""Keep the checkpoints of a job's program while it runs: python3 -I -S checkpoints.py VERB FOLDER ...

keep FOLDER             `job.py` starts this next to the program, and writes its exit status to stdin
notice FOLDER SECONDS REASON ...   ask for the program's end within so many seconds
pick FOLDER             print the newest state that was not copied yet, and keep its contents until it is
stored FOLDER           the copy of the picked state is complete: remove it here, with older ones
drop FOLDER             the picked state cannot be copied, as a file of it has changed: remove it
restore FOLDER TEXT ... put the files of FOLDER/checkpoints/restore.json into FOLDER/work, whole or not at
                        all; the text is for the log
fetch FOLDER            bring the newest whole state from S3 for that; prints what it is, as JSON
forget FOLDER           remove all states from S3

FOLDER/checkpoints.json says what is kept. A *state* is all files that its patterns match. FOLDER/checkpoints
has `state-NUMBER.json`, which names each file with its size and digest, and `objects/DIGEST`, the contents. A
state is published by its name, after nothing of it has changed for some seconds and while no process has a
file of it open for writing; FOLDER/records.jsonl has {"record": "checkpoint", "number", "files", "bytes"}.

At an interruption notice, a rebalance recommendation, the end of the budget, or when asked, it has {"record":
"notice", "reason", "seconds"}, and FOLDER/records.jsonl.notice lets the harness ask the program to stop. What
the program writes until then is a state of its own, marked `ended`; {"record": "stopped", "run_s"} says how
long the program has run.

With `upload` in FOLDER/checkpoints.json, s5cmd stores states in S3 in the same shape: the contents first,
then the manifest, so that a state counts only when it is whole. The newest two are kept.
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
import subprocess
import sys
import threading
import time
import typing
import urllib.parse

POLL_S = 0.5
QUIET = ((0.0, 3.0), (5.0, 1.0), (10.0, 0.0))
"""Seconds for which nothing may have changed, by how long a state has been waited for: a program that writes
all the time is copied between two of its writes."""
BETWEEN_S = 0.5
"""For which the end of a write is waited for then, each time."""
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
WORKED = "records.jsonl.worked"
"""Seconds of work in the state that was restored: the harness adds them to the program's time."""
KEPT_FREE = 0.1
"""Share of the disk that copies leave free; where there is less, a file is linked instead."""
LARGE = 1 << 24
"""Bytes that are copied only if no file is open; whether one is counts after the copy in any case."""
NICE = 19
KEPT = 2
"""States in S3."""
RETRY_S = 10.0
FLUSH_S = 600.0
"""How long the last state may take to S3 after a program that had no notice."""
NOTHING_THERE = "no object found"
"""What s5cmd says if a pattern matches nothing, and ends with a status other than 0."""
MISSING = (NOTHING_THERE, "NoSuchKey", "NotFound", "not found")
SCAN_SHARE = 0.02
LONGEST_PAUSE_S = 5.0
"""The share of a processor that looking and copying take is at most this, unless the pauses were longer."""

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
        if (self.own / "number").exists():
            numbers.append(int((self.own / "number").read_text()))
        self.number = max([int(self.options.get("number", 0)), *numbers])
        self.patterns = self.options["patterns"] if self.options["is_kept"] else []
        self.began, self.worked_s = time.time(), worked_s(folder)
        self.seen = self.last = scan(self.work, self.patterns)
        self.changed_at = self.waiting_since = time.monotonic()
        self.digests: dict[tuple[typing.Any, ...], str] = {}

    def poll(self) -> None:
        """Publish what is there, if it is new and has settled."""
        now = time.monotonic()
        present = scan(self.work, self.patterns)
        if present != self.seen:
            if self.seen == self.last:
                self.waiting_since = now
            self.seen, self.changed_at = present, now
        if present == self.last:
            self.waiting_since = now
            return
        needed = [quiet for waited, quiet in QUIET if now - self.waiting_since >= waited][-1]
        if now - self.changed_at >= needed:
            until = time.monotonic() + (0.0 if needed else BETWEEN_S)
            while not self.take() and time.monotonic() < until:
                time.sleep(POLL_S / 20)

    def take(
        self, present: "Fingerprint | None" = None, *, ended: bool = False, finished: bool = False
    ) -> bool:
        """Publish what is there; False if it is not new, or changes meanwhile.

        `ended`: the program was asked to stop; `finished`: it has done its work.
        """
        present = scan(self.work, self.patterns) if present is None else present
        if not present or (present == self.last and not finished):
            return False
        size = sum(found[2] for found in present.values() if found[0] == "file")
        if size > LARGE and is_open(self.work, present):
            return False  # it would be copied in vain
        with locked(self.own):
            try:
                files = {name: self.copy(name) for name, found in present.items() if found[0] == "file"}
            except FileNotFoundError:
                return False  # the program has just removed it
            except OSError as error:
                print(f"dlcloud: no copy of the checkpoints: {error}", flush=True)
                return False
            links = {name: found[1] for name, found in present.items() if found[0] == "link"}
            if scan(self.work, self.patterns) != present or is_open(self.work, present):
                return False  # what was copied of it is used by the next state, or removed with it
            self.number, self.last = self.number + 1, present
            self.waiting_since = time.monotonic()
            for path in self.own.glob("state-*.json"):
                path.unlink()
            made_at = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
            state = {"schema": 1, "number": self.number, "made_at": made_at, "ended": ended}
            state.update(finished=finished, key=self.options.get("key", ""))
            own_s = max(0.0, newest_change(self.work, present) - self.began)
            state.update(worked_s=round(self.worked_s + own_s, 3), run_s=round(own_s, 3))
            write(
                self.own / f"state-{self.number}.json", json.dumps({**state, "files": files, "links": links})
            )
        if not finished:  # the harness's last record says how all ended
            self.record(record="checkpoint", number=self.number, files=len(files), bytes=size, ended=ended)
        return True

    def is_up_to_date(self) -> bool:
        """True if there is nothing that a state could have beyond the last one."""
        present = scan(self.work, self.patterns)
        return not present or present == self.last

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
    keeper = Keeper(folder)
    watch = Watch(keeper)
    uploads = Uploads(keeper) if keeper.options.get("upload") else None
    next_at = 0.0
    pause_s = POLL_S
    while (status := ended_status(pause_s)) is None:
        notice, began = watch.notice, time.process_time()
        if notice is not None and not watch.is_asked:
            if keeper.take() or keeper.is_up_to_date():
                watch.settled.set()
        elif notice is not None and time.monotonic() >= notice.ends_at - SAVE_S:
            keeper.take(ended=True)
        elif time.monotonic() >= next_at:
            keeper.poll()
            next_at = time.monotonic() + min(LONGEST_PAUSE_S, (time.process_time() - began) / SCAN_SHARE)
        if uploads is not None:
            uploads.wake.set()
        pause_s = POLL_S if watch.notice is None or watch.is_asked else POLL_S / 10
    notice = watch.notice
    if notice is not None:
        keeper.record(record="stopped", run_s=round(time.time() - keeper.began, 3))
    if notice is not None and is_caught(folder):
        keeper.take(ended=True)
    elif status and time.time() - newest_change(keeper.work, keeper.seen) > QUIET[0][1]:
        keeper.take()
    if uploads is not None:
        if not status:
            keeper.take(finished=True)
        uploads.flush(FLUSH_S if notice is None else max(SAVE_S, notice.ends_at - time.monotonic()))


class Bucket:
    """States in S3, by s5cmd."""

    def __init__(self, options: "dict[str, typing.Any]") -> None:
        upload = options["upload"]
        self.to, self.tool, self.variables = upload["to"], upload["tool"], upload["variables"]
        self.refused = options.get("refused", ())
        """The numbers of states from which the program could not start; they stay until the next one."""

    def call(self, *words: str) -> str:
        """Run s5cmd and return what it prints.

        Raises:
            OSError: It failed.
        """
        environment = {**os.environ, **self.variables}
        done = subprocess.run([self.tool, *words], capture_output=True, env=environment, check=False)
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace").strip()[-300:])
        return done.stdout.decode(errors="replace")

    def names(self, pattern: str) -> "list[str]":
        """Return the names of the objects below the prefix that match."""
        try:
            lines = self.call("--json", "ls", f"{self.to}/{pattern}").splitlines()
        except OSError as error:
            if NOTHING_THERE in str(error):
                return []
            raise
        return [json.loads(line)["key"].rpartition("/")[2] for line in lines]

    def numbers(self) -> "list[int]":
        """Return the numbers of the states, the newest first."""
        return sorted((number_of(pathlib.Path(name)) for name in self.names("state-*.json")), reverse=True)

    def state(self, number: int) -> "dict[str, typing.Any]":
        return json.loads(self.call("cat", f"{self.to}/state-{number}.json"))

    def store(self, own: pathlib.Path, state: "dict[str, typing.Any]") -> None:
        """Store the picked state, and remove all but the newest ones, each manifest before its contents."""
        wanted = {entry["sha256"] for entry in state["files"].values()}
        there = set(self.names("objects/*"))
        for digest in sorted(wanted - there):
            self.call("cp", str(own / "objects" / digest), f"{self.to}/objects/{digest}")
        self.call("cp", str(own / "picked.json"), f"{self.to}/state-{state['number']}.json")
        numbers = self.numbers()
        kept = [number for number in numbers if number not in self.refused][:KEPT]
        for old in set(numbers) - set(kept):
            self.call("rm", f"{self.to}/state-{old}.json")
        states = [self.state(number) for number in kept]
        used = {entry["sha256"] for state in states for entry in state["files"].values()}
        for digest in sorted((there | wanted) - used):
            self.call("rm", f"{self.to}/objects/{digest}")


class Uploads:
    """Stores the newest state of a keeper in S3, in its own thread."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.bucket = keeper, Bucket(keeper.options)
        self.wake, self.is_last, self.retry_at = threading.Event(), False, 0.0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def flush(self, seconds: float) -> None:
        """Store what is left, within a time."""
        self.is_last, self.retry_at = True, 0.0
        self.wake.set()
        self.thread.join(seconds)

    def run(self) -> None:
        while True:
            self.wake.wait()
            self.wake.clear()
            is_last = self.is_last
            is_tried = is_last or time.monotonic() >= self.retry_at
            try:
                if is_tried and (state := picked(self.keeper.own)):
                    self.store(state, is_last=is_last)
                if is_last:
                    return
            except (OSError, ValueError) as error:
                print(f"dlcloud: no checkpoint is stored in S3: {error}", flush=True)
                self.retry_at = time.monotonic() + RETRY_S
                if is_last:
                    time.sleep(POLL_S)
                    self.wake.set()

    def store(self, state: "dict[str, typing.Any]", *, is_last: bool) -> None:
        began = time.monotonic()
        self.bucket.store(self.keeper.own, state)
        stored(self.keeper.folder)
        if not is_last or state["ended"]:
            seconds = round(time.monotonic() - began, 3)
            values = {"number": state["number"], "run_s": state["run_s"], "seconds": seconds}
            self.keeper.record(record="checkpoint_stored", **values)


def fetch(folder: pathlib.Path) -> None:
    """Bring the newest whole state from S3, for `restore`; print what it is."""
    options, own = json.loads((folder / "checkpoints.json").read_text()), folder / "checkpoints"
    bucket = Bucket(options)
    (own / "objects").mkdir(parents=True, exist_ok=True)
    numbers = bucket.numbers()
    write(own / "number", str(max(numbers, default=0)))
    for number in (one for one in numbers if one not in bucket.refused):
        state = bucket.state(number)
        if state.get("key") != options["key"]:
            sys.exit(f"the checkpoints in {bucket.to} are of another command, {state.get('key')}")
        if state.get("finished"):
            break
        contents = {entry["sha256"]: entry["size"] for entry in state["files"].values()}
        try:
            for digest in contents:
                bucket.call("cp", f"{bucket.to}/objects/{digest}", str(own / "objects" / digest))
            is_whole = all(digest_of(own / "objects" / digest) == digest for digest in contents)
        except OSError as error:
            if not any(word in str(error) for word in MISSING):
                sys.exit(f"checkpoint {number}: {error}")
            is_whole = False
        if not is_whole:
            continue  # the one before it
        write(own / "restore.json", json.dumps(state))
        shown = {name: state[name] for name in ("number", "made_at", "ended")}
        print(json.dumps({**shown, "files": len(state["files"]), "bytes": sum(contents.values())}))
        return
    print("{}")


def forget(folder: pathlib.Path) -> None:
    """Remove all states from S3; the next one that is stored removes their contents."""
    bucket = Bucket(json.loads((folder / "checkpoints.json").read_text()))
    for number in bucket.numbers():
        bucket.call("rm", f"{bucket.to}/state-{number}.json")


def is_caught(folder: pathlib.Path) -> bool:
    """True if the program had its own way to stop: otherwise a write may have been cut off by the signal."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((folder / "records.jsonl.asked").read_text())["catches"])
    return False


def worked_s(folder: pathlib.Path) -> float:
    """Return how long the program had worked for the state that it begins with."""
    with contextlib.suppress(OSError, ValueError):
        return float((folder / WORKED).read_text())
    return 0.0


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
    """Looks for what ends the program early, in its own thread: a copy may take minutes.

    At the first notice, a write that has begun and the copy of what is there may end before the program is
    asked to stop: the keeper sets `settled` then.
    """

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.is_asked = keeper, False
        self.notice: "Notice | None" = None
        self.settled = threading.Event()
        self.request = keeper.own / "notice.json"
        self.has_rebalance = keeper.options.get("on_rebalance", False)
        self.budget = pathlib.Path(os.environ.get("DLCLOUD_ROOT", "") + "/var/lib/dlcloud/ends-at")
        self.token, self.token_until, self.next_at = "", 0.0, 0.0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while (notice := self.look()) is None:
            time.sleep(POLL_S)
        left = max(0.0, notice.ends_at - time.monotonic())
        self.keeper.record(record="notice", reason=notice.reason, seconds=round(left, 1))
        self.notice = notice
        self.settled.wait(max(0.0, min(SETTLE_S, left - SAVE_S)))
        answer = json.dumps({"run": self.keeper.options.get("on_notice", "")})
        write(self.keeper.folder / "records.jsonl.notice", answer)
        self.is_asked = True

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
    """True if a process has one of the files open for writing. Source: proc_pid_fdinfo(5).

    It looks at all that this user may see, as a container's processes are no descendants of the job.
    """
    names = {str(work / name) for name in present}
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - five times as fast
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    if os.readlink(f"/proc/{process}/fd/{number}") in names:  # noqa: PTH115
                        info = pathlib.Path(f"/proc/{process}/fdinfo/{number}").read_text()
                        flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                        if int(flags.split()[1], 8) & os.O_ACCMODE:
                            return True
    return False


def notice(folder: pathlib.Path, seconds: str, *reason: str) -> None:
    """Ask for the program's end."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    asked = {"seconds": float(seconds), "reason": " ".join(reason)}
    write(folder / "checkpoints" / "notice.json", json.dumps(asked))


def pick(folder: pathlib.Path) -> None:
    """Print the newest state that was not copied yet; nothing if there is none."""
    own = folder / "checkpoints"
    state = picked(own) if own.exists() else {}
    print(json.dumps(state) if state else "")


def picked(own: pathlib.Path) -> "dict[str, typing.Any]":
    """Return the newest state that was not copied yet, whose contents stay until `stored` or `drop`."""
    with locked(own):
        for path in own.glob("state-*.json"):
            text = path.read_text()
            write(own / "picked.json", text)
            return json.loads(text)
    return {}


def stored(folder: pathlib.Path) -> None:
    """Remember what another place has of this job, and remove that here."""
    own = folder / "checkpoints"
    with locked(own):
        number = json.loads((own / "picked.json").read_text())["number"]
        (own / "picked.json").replace(own / "stored.json")
        remove_unused(own, below_number=number + 1)


def drop(folder: pathlib.Path) -> None:
    own = folder / "checkpoints"
    with locked(own):
        number = json.loads((own / "picked.json").read_text())["number"]
        (own / "picked.json").unlink()
        remove_unused(own, below_number=number + 1)


def remove_unused(own: pathlib.Path, *, below_number: int) -> None:
    """Remove states before one, and contents that no other state has."""
    for path in own.glob("state-*.json"):
        if number_of(path) < below_number:
            path.unlink()
    states = [*own.glob("state-*.json"), *own.glob("picked.json")]
    used = {entry["sha256"] for path in states for entry in json.loads(path.read_text())["files"].values()}
    for path in (own / "objects").iterdir():
        if path.name not in used:
            path.unlink()


def restore(folder: pathlib.Path, *text: str) -> None:
    """Put a state into FOLDER/work, after each of its contents was checked."""
    own, work = folder / "checkpoints", folder / "work"
    state = json.loads((own / "restore.json").read_text())
    names = [*state["files"], *state["links"]]
    patterns = json.loads((folder / "checkpoints.json").read_text())["patterns"]
    others = scan(work.resolve(), patterns).keys() - set(names)
    for name in names:
        if not is_below(name):
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
    write(folder / WORKED, str(float(state.get("worked_s", 0.0))))
    (own / "restore.json").replace(own / "stored.json")
    remove_unused(own, below_number=0)
    with (folder / "log").open("a") as log:
        log.write(f"dlcloud: restored {' '.join(text)}\n")


LONGEST_PATH, LONGEST_NAME = 4096, 255


def is_below(name: str) -> bool:
    """True for the path of a file below a folder, relative to it; as that of dlcloud/model/untrusted.py."""
    parts = name.split("/")
    is_relative = name != "" and not name.startswith("/") and ".." not in parts and "\0" not in name
    return is_relative and len(name) <= LONGEST_PATH and len(max(parts, key=len)) <= LONGEST_NAME


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
    verbs.update({"pick": pick, "fetch": fetch, "forget": forget})
    verbs[verb](pathlib.Path(folder).absolute(), *rest)


if __name__ == "__main__":
    main()
