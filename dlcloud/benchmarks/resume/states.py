"""The saved states of one training: where they lie, when one is saved, and which one it may begin with.

Each call of a framework's training in a program has a folder below `$DLCLOUD_CHECKPOINTS/dlcloud-resume`. A
state in it is a folder `step-N`, which gets its name when it is complete. Its `dlcloud.json` says of what it
is: the script with the modules next to it, its arguments, the framework, the settings of the training and the
number of processes. A state of anything else is refused: the program ends with the reason, or starts from the
beginning if it was restarted by the same `dlcloud up`, during which it was not changed on purpose.
"""

import atexit
import hashlib
import json
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FOLDER = "dlcloud-resume"
DESCRIPTION = "dlcloud.json"
FINISHED = "finished"
PARTIAL = "partial-"
FILES = "files"
KEPT = 2
"""States: the newest, and the one before it in case the newest was not copied whole."""

INTERVAL_S = 60.0
SHARE = 50
"""States are saved every `INTERVAL_S`, but no more often than this many times the duration of a save: 2 %."""
NOT_RESUMED = "{} is not resumed: the training starts from the beginning after an interruption"

AHEAD = 2
"""Steps after which all processes save that one of them asks for: none can be further than one step ahead."""

MOST_SENT = 256 << 20
"""Bytes that the processes on other instances may save in addition to what rank 0 saves."""

NOTICE_STATUS = 128 + signal.SIGTERM
END_S = 5.0
"""For what the program does at its exit, such as a tracker's last upload."""

_calls: dict[str, int] = {}


def say(message: str) -> None:
    """Write a line into the program's log."""
    sys.stderr.write(f"dlcloud: {message}\n")
    sys.stderr.flush()


def end(status: int) -> NoReturn:
    """End the program here: an exception might be caught, and the rest would run with half a model."""
    leaving = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    leaving.start()
    leaving.join(END_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


class States:
    """The states of one call of a framework's training.

    Args:
        kind: The framework, such as `transformers`.
        version: Its version; another one is refused.
        settings: What decides the result, as plain values; other ones are refused.
        world: Number of processes of the training.
        rank: Of this one.
        seed: With which the random numbers began, if known.
    """

    def __init__(
        self,
        kind: str,
        *,
        version: str,
        settings: Mapping[str, Any],
        world: int = 1,
        rank: int = 0,
        seed: int | None = None,
    ) -> None:
        self.kind, self.world, self.rank = kind, world, rank
        self.is_noticed = False
        self._is_off = False  # what it would have to save is too large
        self.step = 0  # of the state that the training began with
        self._label, self._identity = _identify(
            kind, version, {**settings, **({} if seed is None else {"seed": seed})}, world
        )
        digest = _digest([self._label, self._identity["arguments"]])[:12]
        name = f"{Path(self._label[0]).stem}-{kind}-{digest}"
        self.folder = Path(os.environ["DLCLOUD_CHECKPOINTS"], FOLDER, name)
        self._job = _job()
        self.is_first = int(os.environ.get("LOCAL_RANK", "0") if world > 1 else "0") == 0
        self.is_spread = world > int(os.environ.get("LOCAL_WORLD_SIZE") or world)  # over several instances
        self._key = f"dlcloud/{kind}/{self._label[2]}"  # in PyTorch's store
        self._requests = self._waits = 0
        self._before: Any = None
        given = os.environ.get("DLCLOUD_RESUME_INTERVAL_S")  # of tests
        self._interval_s, self._share = (float(given), 0) if given else (INTERVAL_S, SHARE)
        self._saved_at, self._took_s = time.monotonic(), 0.0
        self._due_at = self._saved_at + self._interval_s

    def __enter__(self) -> "States":  # noqa: PYI034 - Self is newer than the oldest Python here
        """Take SIGTERM for the notice until the training ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        before = signal.getsignal(signal.SIGTERM)
        if callable(before) and before is not signal.default_int_handler:
            say("the script handles SIGTERM itself, so that the hook saves at intervals only")
        else:
            with suppress(ValueError):  # a training in another thread
                signal.signal(signal.SIGTERM, self._notice)
                self._before = before
                _let_children_end(self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def take_signal(self) -> None:
        """Take SIGTERM again from a framework that has taken it since."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._notice)

    def _notice(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        if not self.is_noticed:
            self.is_noticed = True
            with suppress(OSError, ValueError):
                os.write(2, b"dlcloud: SIGTERM: the training saves its state after this step and stops\n")

    def newest(self) -> Path | None:
        """Return the newest complete state, or None to begin; end the program if the state is refused."""
        states = {
            step: path for path in self.folder.glob("step-*") if (step := _complete_step(path)) is not None
        }
        self._refuse_siblings(has_states=bool(states))
        reasons = self._differences(states[max(states)]) if states else []
        if reasons := next(filter(None, self._gather("refused", reasons)), []):
            self._refuse(reasons)  # all processes do what one of them must
            states = {}
        step = self._agree(states)
        if self.is_first:
            for path in self.folder.glob(f"{PARTIAL}*"):
                shutil.rmtree(path, ignore_errors=True)
            self._write(self.folder / "run.json", {"job": self._job, "label": self._label})
        if step is None:
            if not self.rank:
                say(f"{self._title()} starts from the beginning; it saves at an interruption notice")
            return None
        self.step = step
        if not self.rank:
            say(f"{self._title()} resumes after step {step}, saved in {states[step].parent.name}")
        return states[step]

    def is_due(self, step: int, *, is_last: bool = False) -> bool:
        """Return whether the state after this step is to be saved: the same on all processes.

        `is_last`: no step follows; it is saved unless that costs more than `SHARE` allows. Several processes
        save no last state, as a notice might then end some of them and not the others.
        """
        if self._is_off:
            return False
        is_due = self.is_noticed or time.monotonic() >= self._due_at
        store = self._store()
        if store is None:
            return is_due or (is_last and time.monotonic() >= self._saved_at + self._share * self._took_s)
        key = f"{self._key}/save/{self._requests}"
        if is_due and (self.is_noticed or not self.rank):
            store.compare_set(key, "", f"{step + AHEAD} {int(self.is_noticed)}")
        if not store.check([key]):
            return False
        at, notice = store.get(key).split()
        if step < int(at):
            return False
        self.is_noticed = self.is_noticed or notice == b"1"
        return True

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Save the state after a step; after a notice, end the program.

        Args:
            step: Larger than that of the state before.
            write: Writes this process's part into a folder, which all processes of an instance share.
        """
        began = time.monotonic()
        self._requests += 1
        partial, state = self.folder / f"{PARTIAL}{step}", self.folder / f"step-{step}"
        try:
            partial.mkdir(parents=True, exist_ok=True)
            write(partial)
            if self.rank:
                self._write(partial / f"{self.rank}-{DESCRIPTION}", self._identity)
            self._wait_for_all()
            self._is_off = self.is_spread and not self._send_to_first(partial)
            if self._is_off:
                shutil.rmtree(partial, ignore_errors=True)
            elif self.is_first:
                self._publish(partial, state)
            self._wait_for_all()
        except OSError as error:
            say(f"cannot save step {step}: {error}")
            if self.world > 1:
                raise
        took = time.monotonic() - began
        self._saved_at, self._took_s = time.monotonic(), took
        self._due_at = self._saved_at + max(self._interval_s, self._share * took)
        if self._is_off:
            self.__exit__()
        if self.is_noticed:
            if not self.rank and not self._is_off:
                say(
                    f"saved step {step} of {self._title()} in {took:.1f} s; "
                    "the program stops for the interruption"
                )
            end(NOTICE_STATUS)

    def finish(self) -> None:
        """Record that the training ended by itself."""
        if self.is_first and self.folder.is_dir():
            self._write(self.folder / FINISHED, {"job": self._job})

    def _send_to_first(self, partial: Path) -> bool:
        """Give rank 0, which keeps the checkpoints, the files that processes on other instances wrote.

        Returns:
            False if these are too large, on all processes.
        """
        store = self._store()
        own = [path for path in partial.rglob("*") if path.is_file()] if self.is_first else []
        listed = self._gather(
            f"files/{self._requests}", [[str(path.relative_to(partial)), path.stat().st_size] for path in own]
        )
        names = {name for name, _ in listed[0]}
        missing = {name: rank for rank, files in enumerate(listed) for name, _ in files if name not in names}
        size = sum(
            size for rank, files in enumerate(listed) for name, size in files if missing.get(name) == rank
        )
        if size > MOST_SENT:
            if not self.rank:
                before = max(self.folder.glob("step-*"), key=_step_of, default=None)
                begin = "the beginning" if before is None else f"step {_step_of(before)}"
                say(
                    f"processes on other instances save {size >> 20} MB more than rank 0, and "
                    f"{MOST_SENT >> 20} MB at most are kept: after an interruption it starts from {begin}"
                )
            return False
        for name, rank in missing.items():
            key = f"{self._key}/file/{self._requests}/{name}"
            if rank == self.rank:
                store.set(key, (partial / name).read_bytes())
            if not self.rank:
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).write_bytes(store.get(key))
                store.delete_key(key)
        return True

    def _publish(self, partial: Path, state: Path) -> None:
        files = {
            str(path.relative_to(partial)): path.stat().st_size
            for path in partial.rglob("*")
            if path.is_file()
        }
        self._write(partial / DESCRIPTION, {**self._identity, "job": self._job, "files": files})
        shutil.rmtree(state, ignore_errors=True)
        partial.rename(state)
        kept = sorted(self.folder.glob("step-*"), key=_step_of)[:-KEPT]
        for old in kept:
            shutil.rmtree(old, ignore_errors=True)

    def _title(self) -> str:
        script, kind, number = self._label
        return f"{script} ({kind})" if number == 1 else f"{script} ({kind}, call {number})"

    def _differences(self, state: Path) -> list[str]:
        """Return in which respects a state is not one of this training."""
        own = state / f"{self.rank}-{DESCRIPTION}"  # its seed may be another one
        saved = _read(own if own.exists() else state / DESCRIPTION)
        reasons = []
        for name, digest in self._identity["script"].items():
            if saved["script"].get(name, digest) != digest:
                reasons.append(f"{name} has changed")
        for key, title in (("framework", "the framework"), ("world", "the number of processes")):
            if saved[key] != self._identity[key]:
                reasons.append(f"{title} was {saved[key]} and is {self._identity[key]}")
        old, new = saved["settings"], self._identity["settings"]
        reasons += [
            f"{name} was {old.get(name)} and is {new.get(name)}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
        return reasons

    def _refuse(self, reasons: Iterable[str]) -> None:
        why = "; ".join(list(reasons)[:5])
        saved = _read(max(self.folder.glob("step-*"), key=_step_of) / DESCRIPTION)
        if saved.get("job") == self._job:
            self._clear(f"the saved state is not used: {why}")
        else:
            self._end_refused(why)

    def _refuse_siblings(self, *, has_states: bool) -> None:
        """Refuse to start over where the same script, with other arguments, was interrupted."""
        if has_states:
            return
        for run in self.folder.parent.glob("*/run.json"):
            recorded = _read(run)
            states = [path for path in run.parent.glob("step-*") if _complete_step(path) is not None]
            if (
                run.parent == self.folder
                or not states
                or recorded.get("label") != self._label
                or recorded.get("job") == self._job
                or (run.parent / FINISHED).exists()
            ):
                continue
            arguments = _read(max(states, key=_step_of) / DESCRIPTION)["arguments"]
            old, new = (" ".join(words) or "none" for words in (arguments, self._identity["arguments"]))
            self._end_refused(f"the arguments were {old} and are {new}")

    def _end_refused(self, why: str) -> NoReturn:
        if not self.rank:
            say(f"{self._title()} is not resumed: {why}")
            say(
                "hint: undo the change to resume; or name another folder in workload.checkpoints, or set "
                "workload.resume: none, to start from the beginning"
            )
        end(1)

    def _clear(self, why: str) -> None:
        """Set the states aside: what was refused is kept until the next refusal."""
        if not self.rank:
            say(f"{self._title()}: {why}")
        if self.is_first:
            aside = self.folder.with_name(f"{self.folder.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            self.folder.rename(aside)
            (aside / "run.json").unlink(missing_ok=True)
            self.folder.mkdir()
        self._wait_for_all()

    def _agree(self, states: Mapping[int, Path]) -> int | None:
        """Return the newest step that the folders of all processes have."""
        common = set(states).intersection(*self._gather("steps", sorted(states)))
        return max(common, default=None)

    def _gather(self, name: str, value: list[Any]) -> list[list[Any]]:
        """Return the values of all processes, in the order of their ranks."""
        store = self._store()
        if store is None:
            return [value]
        store.set(f"{self._key}/{name}/{self.rank}", json.dumps(value))
        values = [json.loads(store.get(f"{self._key}/{name}/{rank}")) for rank in range(self.world)]
        self._wait_for_all()
        return values

    def _store(self) -> Any:
        torch = sys.modules.get("torch")
        if self.world == 1 or torch is None or not torch.distributed.is_initialized():
            return None
        return torch.distributed.distributed_c10d._get_default_store()  # others cost a collective

    def _wait_for_all(self) -> None:
        store = self._store()
        self._waits += 1
        if store is not None:
            key = f"{self._key}/wait/{self._waits}"
            if store.add(key, 1) == self.world:
                store.set(f"{key}/all", "")
            store.wait([f"{key}/all"])

    @staticmethod
    def _write(path: Path, value: Mapping[str, Any]) -> None:
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(json.dumps(value), encoding="utf-8")
        new.replace(path)


def _let_children_end(notice: Callable[[int, FrameType | None], None]) -> None:
    """Have SIGTERM end the processes that a script forks, as by `Process.terminate`."""

    def begin() -> None:
        if signal.getsignal(signal.SIGTERM) == notice:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        allow()

    def allow() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def hold() -> None:  # Python forgets a signal of a child that has just begun
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    os.register_at_fork(before=hold, after_in_parent=allow, after_in_child=begin)


class KeptFiles:
    """What a training has written, such as its best model: kept in its states, and restored to its place.

    A file that has not changed is linked to its copy in the state before. A link to the file itself would
    change with it.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self._copies: dict[tuple[str, int, int], Path] = {}  # by name, time and size

    def keep(self, folder: Path, paths: Iterable[Path]) -> dict[str, str]:
        """Copy files into a state, and return their places by the names of their copies."""
        (folder / FILES).mkdir(exist_ok=True)
        state = self._states.folder / folder.name.replace(PARTIAL, "step-")
        copies, places = {}, {}
        for number, path in enumerate(sorted({path.absolute() for path in paths if path.is_file()})):
            status = path.stat()
            key, name = (str(path), status.st_mtime_ns, status.st_size), f"{FILES}/{number}"
            copy = self._copies.get(key)
            if copy is not None and copy.is_file():
                link(copy, folder / name)
            else:
                shutil.copy2(path, folder / name)
            copies[key] = state / name
            places[name] = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        self._copies = copies
        return places

    @staticmethod
    def restore(state: Path, places: Mapping[str, str]) -> None:
        for name, place in places.items():
            path = Path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(state / name, path)


def _identify(
    kind: str, version: str, settings: Mapping[str, Any], world: int
) -> tuple[list[Any], dict[str, Any]]:
    """Return the name of a call of a training in this program, and all that decides its result."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    name = _shown(path) if path else "-c"
    _calls[kind] = _calls.get(kind, 0) + 1
    code = [] if path else sys.orig_argv[1:]
    return [name, kind, _calls[kind]], {
        "script": _digests(path),
        "arguments": [_shown(word) for word in (*code, *sys.argv[1:])],
        "framework": f"{kind} {version}",
        "settings": json.loads(json.dumps(plain_settings(settings))),
        "world": world,
    }


def _digests(main: str | None) -> dict[str, str]:
    """Return digests of the script and of the modules that it has imported from its folder or this one."""
    folders = {Path.cwd().resolve(), *([Path(main).resolve().parent] if main else [])}
    digests = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or "site-packages" in file or "dist-packages" in file or PACKAGE_FOLDER in file:
            continue
        path = Path(file).resolve()
        if path.suffix == ".py" and any(path.is_relative_to(folder) for folder in folders):
            with suppress(OSError):
                digests[_shown(str(path))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


PACKAGE_FOLDER = str(Path(__file__).parent)


def plain_settings(value: Any) -> Any:
    """Return a setting as JSON has it, without what differs between two runs of one program."""
    if isinstance(value, Mapping):
        return {str(key): plain_settings(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_settings(item) for item in value]
    if isinstance(value, str):
        return _shown(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return f"{type(value).__qualname__}"


def _shown(text: str) -> str:
    """Return a text without the folders of this run, which are others on the next instance."""
    for folder, name in ((os.environ["DLCLOUD_CHECKPOINTS"], "CHECKPOINTS"), (str(Path.cwd()), ".")):
        text = text.replace(str(Path(folder).resolve()), name).replace(folder, name)
    return text.removeprefix("./")


def _job() -> str:
    """Return what the program's runs of one `dlcloud up` have in common, or this session if unknown."""
    return os.environ.get("DLCLOUD_RESUME_RUN") or f"session {os.getsid(0)}"


def _complete_step(path: Path) -> int | None:
    """Return the step of a state that has all its files in full."""
    try:
        files = _read(path / DESCRIPTION)["files"]
        if all((path / name).stat().st_size == size for name, size in files.items()):
            return _step_of(path)
    except (OSError, ValueError, KeyError):
        pass
    return None


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def fields_of(holder: object) -> dict[str, Any]:
    """Return the fields of a callback that are plain data, such as its counters and lists."""
    return {name: value for name, value in vars(holder).items() if _is_plain(value)}


def restore_fields(holder: object, fields: Mapping[str, Any]) -> None:
    """Put saved fields back; lists and dictionaries keep their identity, by which others know them."""
    for name, value in fields.items():
        own = vars(holder).get(name)
        if isinstance(own, list) and isinstance(value, list):
            own[:] = value
        elif isinstance(own, dict) and isinstance(value, dict):
            own.clear()
            own.update(value)
        else:
            with suppress(AttributeError):
                setattr(holder, name, value)


def _is_plain(value: Any) -> bool:
    if value is None or type(value) in {bool, int, float, complex, str, bytes}:
        return True
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(_is_plain(item) for item in value)
    return type(value).__module__ in {"numpy", "torch"} and hasattr(value, "dtype")


def is_torch_metric(item: object) -> bool:
    """Return whether an object is a metric of torchmetrics, which accumulates what no checkpoint has."""
    return hasattr(item, "_defaults") and hasattr(item, "_reductions")


def dump(path: Path, value: object) -> None:
    """Write any object."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value))


def load(path: Path, device: str | None = "cpu") -> Any:
    """Read what `dump` wrote in this program; tensors come to a device, or to where each was."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            file.seek(0)
            return pickle.load(file)
    import torch  # noqa: PLC0415 - it wrote the file

    return torch.load(path, device, weights_only=False)


def link(source: str | Path, target: str | Path) -> None:
    """Link a file, which costs nothing, or copy it to another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def random_state() -> dict[str, Any]:
    """Return the states of the random numbers of Python, NumPy and PyTorch, as far as these are imported."""
    state: dict[str, Any] = {}
    if (random := sys.modules.get("random")) is not None:
        state["python"] = random.getstate()
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random(state: Mapping[str, Any]) -> None:
    """Continue the random numbers of `random_state`."""
    if "python" in state:
        sys.modules["random"].setstate(state["python"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "torch" in state:
        sys.modules["torch"].set_rng_state(state["torch"])
    if "cuda" in state:
        sys.modules["torch"].cuda.set_rng_state(state["cuda"])
