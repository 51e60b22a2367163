"""Stores a run's checkpoints in S3 next to its agent, in its own process: no step waits for an upload.

    python3 -m trainer.uploader --folder DIR --to S3URI --tool S5CMD --run RUN --worker NAME -- AGENT

It starts the agent, watches `checkpoints/` below the folder, and stores the newest checkpoint where this
instance coordinates (`control.json`): first the checkpoint, then a manifest that names it, so that one counts
only when it is whole. Once S3 has confirmed both, `checkpoint_stored` is recorded, and old ones go.
When the agent has ended, the last checkpoint is stored before this ends with the agent's status. If that is
of the last step, an object `finished-STEP-PROGRAM.json` says so, by the digest of the program.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from .records import EventName, Records, log_to_stderr
from .settings import ControlFile

POLL_S = 0.5
RETRY_S = 30.0
"""After a failed upload; a newer checkpoint is stored in its place by then."""
KEPT = 2
TAIL_BYTES = 1 << 16
"""Of the records, in which the end of the training is looked for."""
NAME = re.compile(r"step-(?P<step>\d{12})-(?P<digest>[0-9a-f]{32})\.pt")
MANIFEST = re.compile(r"manifest-(?P<step>\d{12})-(?P<digest>[0-9a-f]{32})-\d+\.json")
NICE = 19
FLUSH_S = 600.0
"""How long the last checkpoint may take after the agent has ended."""


class UploadError(Exception):
    """S3 did not confirm an upload; the message is the tool's."""


Call = Callable[..., str]


def call_tool(tool: str, variables: Mapping[str, str], *words: str) -> str:
    """Run s5cmd with the lowest priority and return its output.

    Raises:
        UploadError: It failed.
    """
    done = subprocess.run(
        ["nice", "-n", str(NICE), tool, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
        start_new_session=True,  # a signal to the run's processes must not cut an upload off
    )
    if done.returncode:
        raise UploadError(done.stderr.strip()[-300:] or f"s5cmd ended with status {done.returncode}")
    return done.stdout


@dataclass(slots=True, kw_only=True)
class Uploader:
    """Stores the newest checkpoint of a folder.

    Args:
        target: `s3://BUCKET/PREFIX`.
        records: Takes `checkpoint_stored`.
        call: Runs s5cmd with these words and returns its output; raises UploadError.
    """

    folder: Path
    target: str
    records: Records
    call: Call
    clock: Callable[[], float] = time.monotonic
    _control: ControlFile = field(init=False)
    _stored: str = field(default="", init=False)
    _retry_at: float = field(default=0.0, init=False)
    _fault: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._control = ControlFile(self.folder / "control.json")

    def poll(self) -> None:
        """Store the newest checkpoint if it is not stored yet, and this instance coordinates."""
        newest = self._newest()
        if newest is None or newest.name <= self._stored or self.clock() < self._retry_at:
            return
        if self._control.read().coordinates:
            self._store(newest)

    def flush(self) -> bool:
        """Store the last checkpoint now; True if nothing is left to store."""
        self._retry_at = 0.0
        self.poll()
        newest = self._newest()
        return newest is None or newest.name <= self._stored or not self._control.read().coordinates

    def finish(self, program: str) -> None:
        """Record in S3 that a program has trained, if the checkpoint of its last step is stored."""
        match = NAME.fullmatch(self._stored)
        if match is None or int(match["step"]) != self._last_step():
            return
        name = f"finished-{match['step']}-{program}.json"
        try:
            self._put(name, {"schema": 1, "step": int(match["step"]), "program": program})
        except (UploadError, OSError) as error:
            # The next `up` then trains no step, but launches to see it.
            self.records.event(EventName.STORE_FAILED, str(error), step=int(match["step"]))

    def _last_step(self) -> int | None:
        """Return the last step, if the newest records say that it is committed."""
        with (self.folder / "records.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        for line in reversed(lines):
            with contextlib.suppress(ValueError, AttributeError):
                record = json.loads(line)
                if record.get("event") == EventName.DONE:
                    return int(record["step"])
        return None

    def _newest(self) -> Path | None:
        paths = (
            path for path in (self.folder / "checkpoints").glob("step-*.pt") if NAME.fullmatch(path.name)
        )
        return max(paths, default=None, key=lambda path: path.name)

    def _store(self, path: Path) -> None:
        match = NAME.fullmatch(path.name)
        assert match is not None  # noqa: S101 - `_newest` names no other
        step, started_at = int(match["step"]), self.clock()
        try:
            size = path.stat().st_size
            self.call("cp", str(path), f"{self.target}/{path.name}")
            self._check_size(path.name, size)
            self._put_manifest(match, size)
        except (UploadError, OSError, ValueError) as error:
            self._retry_at = self.clock() + RETRY_S
            if str(error) != self._fault:
                self.records.event(EventName.STORE_FAILED, str(error), step=step)
            self._fault = str(error)
            return
        self._stored, self._fault = path.name, ""
        seconds = round(self.clock() - started_at, 3)
        self.records.event(EventName.STORED, f"in {self.target}", step=step, bytes=size, seconds=seconds)
        self._remove_old()

    def _check_size(self, name: str, size: int) -> None:
        listed = json.loads(self.call("--json", "ls", f"{self.target}/{name}").splitlines()[-1])
        if int(listed.get("size", -1)) != size:
            raise UploadError(f"S3 has {listed.get('size')} bytes of {name}, not {size}")

    def _put_manifest(self, match: "re.Match[str]", size: int) -> None:
        """Store the manifest, whose name says it all: it is there whole or not at all."""
        name = f"manifest-{match['step']}-{match['digest']}-{size}.json"
        self._put(name, {"schema": 1, "checkpoint": match[0], "step": int(match["step"]), "bytes": size})

    def _put(self, name: str, content: Mapping[str, object]) -> None:
        path = self.folder / name
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        try:
            self.call("cp", str(path), f"{self.target}/{name}")
        finally:
            path.unlink()

    def _remove_old(self) -> None:
        """Remove all but the newest checkpoints, each manifest before its checkpoint."""
        try:
            lines = self.call("--json", "ls", f"{self.target}/*").splitlines()
            names = sorted(json.loads(line)["key"].rpartition("/")[2] for line in lines)
            manifests = [name for name in names if MANIFEST.fullmatch(name)]
            for name in manifests[:-KEPT]:
                self.call("rm", f"{self.target}/{name}")
            if len(manifests) >= KEPT:
                oldest = manifests[-KEPT].removeprefix("manifest-")[:12]
                for name in names:
                    if (match := NAME.fullmatch(name)) and match["step"] < oldest:
                        self.call("rm", f"{self.target}/{name}")
        except (UploadError, ValueError, KeyError) as error:
            self.records.event(EventName.STORE_FAILED, f"an old checkpoint is not removed: {error}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent and store its checkpoints; return the agent's status."""
    values = _parse(argv)
    agent = subprocess.Popen(values.command)
    path = values.folder / "records.jsonl"
    with (
        _signals_forwarded(agent),
        Records(path=path, run=values.run, worker=values.worker, log=log_to_stderr) as records,
    ):
        uploader = Uploader(
            folder=values.folder,
            target=values.to,
            records=records,
            call=lambda *words: call_tool(values.tool, values.variables, *words),
        )
        while agent.poll() is None:
            uploader.poll()
            time.sleep(POLL_S)
        until = time.monotonic() + FLUSH_S
        while not uploader.flush() and time.monotonic() < until:
            time.sleep(POLL_S)
        if agent.returncode == 0 and values.program:
            uploader.finish(values.program)
    return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


@contextlib.contextmanager
def _signals_forwarded(agent: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the agent have the signals that would end this process."""

    def forward(number: int, _: FrameType | None) -> None:
        agent.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m trainer.uploader", description="Store checkpoints in S3."
    )
    add = parser.add_argument
    add("--folder", type=Path, required=True, metavar="DIR", help="of the run")
    add("--to", required=True, metavar="S3URI", help="where the checkpoints are stored")
    add("--tool", required=True, metavar="FILE", help="s5cmd")
    add("--variables", type=json.loads, default={}, metavar="JSON", help="of s5cmd's environment")
    add("--run", required=True, help="name of the run")
    add("--program", default="", metavar="DIGEST", help="of the program that is trained")
    add("--worker", required=True, metavar="NAME", help="name of this instance in the records")
    add("command", nargs=argparse.REMAINDER, help="the agent's command, after --")
    values = parser.parse_args(argv)
    if values.command[:1] == ["--"]:
        values.command = values.command[1:]
    if not values.command:
        parser.error("the command of the agent is missing")
    values.to = values.to.rstrip("/")
    values.folder = Path(os.path.abspath(values.folder))  # noqa: PTH100 - the agent's own working folder
    return values


if __name__ == "__main__":
    sys.exit(main())
