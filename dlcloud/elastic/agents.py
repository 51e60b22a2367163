"""What runs on each instance of an elastic training, and how the launcher follows it.

`program_of` makes the `TrainingProgram` of a recipe: the user's script as worker of an agent
(`trainer.agent`). `Agents.serve` sets an instance up in its own thread, which sends program and control
file, starts the agent and follows its records until it ends. What happens is posted to the controller's
inbox; nothing is decided here. A newcomer gets its environment and its data from instances that have them
already, while those train on.
"""

import hashlib
import json
import logging
import random
import shlex
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dlcloud.trainer
from dlcloud.analysis.result import Run, RunState, parse_record
from dlcloud.elastic.registry import Coordinator, TrainingRegistry, WorkerReport, parse_reports
from dlcloud.launch.data_access import Storage, peer_of
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import INHERITED, RECORDS, RemoteJobs, folder_of
from dlcloud.launch.setup import OLDEST_PYTHON, EnvironmentPeer, prepare, requirements_on, send_command
from dlcloud.launch.user_files import check_files, send_files, with_projects
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, RecipeError, RemoteCommandError
from dlcloud.model.job_environment import JobEnvironment
from dlcloud.model.remote import Connection
from dlcloud.recipe.kept_results import NOTHING
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.requirements import pip_lines
from dlcloud.recipe.workload import Elastic
from dlcloud.trainer.drain import DRAINED
from dlcloud.trainer.settings import LIGHTHOUSE_PORT

PACKAGE = Path(dlcloud.trainer.__file__).parent
ALIAS = b"""# Scripts import dlcloud.trainer, as on a laptop: it is the folder trainer next to this one.
import os
__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
"""
REQUIREMENTS = PACKAGE / "requirements" / "elastic.txt"
CONTROL = "control.json"
PORT = LIGHTHOUSE_PORT
"""The cluster's security group lets only its own instances reach it."""

LAST_S = 5.0
"""A worker that still runs so long before an interruption is killed, so that its peers notice."""

END_ALONE_S = 600.0
"""An instance without coordinator and controller ends itself: no launcher may be there to do it."""

SUCCESSOR = "../../../control/stand-by"
"""The program by which an instance takes control, from the folder of a command; there on standbys only."""

DIGITS = 16
"""Of the digest of a program."""

NEWEST_BYTES = 1 << 16
"""Of the records of a worker, some hundred steps: how far it is."""

REACH_S = 10.0
"""How long a new controller waits for an instance that may be gone, too."""

log = logging.getLogger(__name__)


def program_of(recipe: Recipe, recipe_folder: Path, *, run: str) -> "TrainingProgram":
    """Return the training job of a recipe, whose paths are relative to `recipe_folder`.

    Raises:
        RecipeError: The workload is not elastic, or a file is missing.
    """
    workload = recipe.workload
    if workload.elastic is None or workload.command is None:
        raise RecipeError("workload: this is not an elastic one", "add elastic: {} to its command")
    files = None if workload.files is None else recipe_folder / workload.files
    if files is not None and not files.exists():
        raise RecipeError(
            f"workload.files: {files} does not exist", "the path is relative to the recipe's folder"
        )
    if files is not None:
        check_files(files)
    return TrainingProgram(
        run=run,
        command=with_projects(workload.command, recipe, recipe_folder),
        # An image brings its own PyTorch.
        requirements=""
        if recipe.setup.image
        # Those of the trainer have no hashes, so that none may have.
        else "\n".join([REQUIREMENTS.read_text(), *pip_lines(recipe.setup.requirements, with_hashes=False)]),
        files=files,
        elastic=workload.elastic,
        image=recipe.setup.image,
        # How many workers an instance has does not change what is trained.
        workload=workload.model_dump_json(exclude={"elastic": {"workers_per_instance"}}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgram:
    """The training job of a recipe.

    Args:
        run: The name by which its workers recognise each other.
        command: Of a worker, for the shell; `python3` in it is the environment's.
        requirements: Pinned packages, a line each.
        files: Copied to where the command runs, or None.
        image: Of the container that it runs in; empty: in none.
        workload: All that the recipe says of it, as text.
    """

    run: str
    command: str
    requirements: str
    files: Path | None
    elastic: Elastic
    image: str = ""
    workload: str = ""

    @property
    def digest(self) -> str:
        """The digest of what is trained: the recipe's workload, and the content of the sent files."""
        state, files = hashlib.sha256(self.workload.encode()), self.files
        if files is None:
            return state.hexdigest()[:DIGITS]
        for entry in check_files(files).entries:
            path = files / entry.name if files.is_dir() else files
            content = path.read_bytes() if path.is_file() else b""
            state.update(f"\0{entry.name}\0{len(content)}\0".encode() + content)
        return state.hexdigest()[:DIGITS]

    def agent(self, python: str, *, worker: str, coordinator: Coordinator, upload: Sequence[str] = ()) -> str:
        """Return the shell command of an instance's agent, for the folder in which the command runs.

        Args:
            python: The environment's interpreter.
            worker: The instance's name in the records.
            coordinator: It may be this instance.
            upload: Options of `trainer.uploader`, which then runs next to the agent.
        """
        elastic = self.elastic
        words = ["-m", "trainer.agent", "--folder", "..", "--run", self.run, "--worker", worker]
        words += ["--coordinator", coordinator.host, "--port", str(PORT)]
        words += ["--checkpoint-seconds", f"{elastic.checkpoint_seconds:g}"]
        words += ["--margin", f"{elastic.leave_seconds:g}"]
        # A worker has at least half of that time to leave before it is killed.
        words += ["--last-seconds", f"{min(LAST_S, elastic.leave_seconds / 2):g}"]
        words += ["--hash-every", str(elastic.exact_hash_every), "--end-alone-after", f"{END_ALONE_S:g}"]
        if elastic.workers_per_instance is not None:
            words += ["--workers", str(elastic.workers_per_instance)]
        if not self.image:
            words += ["--successor", SUCCESSOR]
        if worker == coordinator.instance_id:
            # The minimum may change while the workers train: it is in the control file.
            words += ["--lighthouse", "--step", str(coordinator.step)]
        words += ["--", "sh", "-c", f"exec {self.command}"]
        if upload:
            uploader = ["-m", "trainer.uploader", "--folder", "..", "--run", self.run, "--worker", worker]
            uploader += ["--program", self.digest]
            words = [*uploader, *upload, "--", python, *words]
        return f"PYTHONPATH=.. exec {shlex.quote(python)} {shlex.join(words)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsReceived:
    """New reports of an instance."""

    instance_id: str
    reports: Sequence[WorkerReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExited:
    """The agent on an instance has ended: its run, or the error for which there is none."""

    instance_id: str
    run: Run | None = None
    error: BaseException | None = None

    @property
    def has_finished(self) -> bool:
        """True if it ended because the training did."""
        return self.run is not None and self.run.exit_status == 0

    @property
    def is_drained(self) -> bool:
        """True if its workers left because they were asked to."""
        return self.run is not None and self.run.exit_status == DRAINED


@dataclass(slots=True, kw_only=True)
class Agents:
    """The agents of one training.

    Args:
        registry: Knows the present coordinator.
        image_id: The image of the instances, for the stored run.
        prices: Of the instances, in both markets.
        post: Receives what happens, from any thread.
        has_taken_over: True for a controller that took over from one that was lost.
        storage: The data and the buckets of the recipe.
        environment: Of the workers.
        restored: Committed steps of the checkpoint in S3 that the training continues from.
    """

    launcher: Launcher
    recipe: Recipe
    program: TrainingProgram
    registry: TrainingRegistry
    image_id: str
    prices: PriceLookup
    post: Callable[[ReportsReceived | AgentExited], None]
    storage: Storage
    environment: JobEnvironment = INHERITED
    restored: int = 0
    has_taken_over: bool = False
    _peers: dict[str, Member] = field(default_factory=dict, init=False)  # by id; they have the environment
    _drains: dict[str, str] = field(default_factory=dict, init=False)
    _locks: defaultdict[str, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock), init=False
    )

    _jobs: RemoteJobs = field(init=False)

    def __post_init__(self) -> None:
        self._jobs = RemoteJobs(managed=self.launcher, any_may_keep=True)

    def serve(self, member: Member) -> None:
        """Set up an instance and follow its agent, from a thread; a running agent is only followed."""
        name = f"worker {member.instance.instance_id}"
        threading.Thread(target=self._serve, args=(member,), name=name, daemon=True).start()

    def forget_peer(self, name: str) -> None:
        """Let no newcomer copy its environment or data from this instance: it would end during the copy."""
        self._peers.pop(name, None)
        self.storage.forget(name)

    def read_past(self, member: Member) -> list[WorkerReport]:
        """Return what an agent that is to be followed on has reported before.

        That is what it sent to an earlier controller; if that one was lost with its store, also the newest
        that lies on the instance.
        """
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is None:
            return []
        lines = list(self.launcher.store.runs.all_lines(run.run_id))
        if self.has_taken_over:
            lines += self._read_newest(member, run)
        records = [record for line in lines if (record := parse_record(line)) is not None]
        return parse_reports(run.instance_id, records)

    def has_run(self, member: Member) -> bool:
        """True if an agent was started on an instance."""
        return self._jobs.find_unfinished(member, self.recipe.name) is not None

    def _read_newest(self, member: Member, run: Run) -> list[str]:
        """Return the newest whole lines of the records on an instance; none where it does not answer."""
        try:
            answer = self._jobs.connect(member, REACH_S).run(
                f"tail -c {NEWEST_BYTES} {folder_of(run)}/{RECORDS}"
            )
        except DlcloudError as error:
            log.warning("cannot read the records of %s: %s", run.instance_id, error.message)
            return []
        return answer.stdout.decode("utf-8", "replace").split("\n")[1:-1]

    def error_of(self, run: Run) -> RemoteCommandError:
        """Return the error of a run that failed, with the end of its log."""
        return self._jobs.error_of(run, self.recipe.name)

    def drain(self, member: Member, cause: str) -> None:
        """Ask the worker on an instance to leave after its step; raises as `write_control` does."""
        self._drains[member.instance.instance_id] = cause
        self.write_control(member)

    def write_control(self, member: Member) -> bool:
        """Write the control file of an instance; False where no agent is there yet.

        Raises:
            UnreachableError, RemoteCommandError: It could not be written.
        """
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is None:
            return False
        with self._locks[member.instance.instance_id]:  # the newest content must be written last
            self._send_control(self._jobs.connect(member), member, run)
        return True

    def remind(self, member: Member) -> None:
        """Let an instance know that its controller lives; raises as `write_control` does."""
        run = self._jobs.find_unfinished(member, self.recipe.name)
        if run is not None:
            self._jobs.connect(member).check(f"touch -c {folder_of(run)}/{CONTROL}")

    def _send_control(self, connection: Connection, member: Member, run: Run) -> None:
        name = member.instance.instance_id
        content = control_file(self.registry.coordinator, worker=name, drain=self._drains.get(name))
        connection.send_bytes(content, f"{folder_of(run)}/{CONTROL}")

    def _serve(self, member: Member) -> None:
        name = member.instance.instance_id
        jobs, runs = self._jobs, self.launcher.store.runs
        try:
            connection = jobs.connect(member)
            run = jobs.find_unfinished(member, self.recipe.name) or self._send(connection, member)
            self._peers[name] = member
            jobs.start(connection, run, self.environment)
            runs.put_prices(run.run_id, self.prices.of(run.instance_type, run.zone))
            ended = jobs.follow(member, run, partial(self._receive, name))
            if ended.exit_status == DRAINED:
                ended = replace(ended, state=RunState.DONE)
            kept = self.recipe.kept_files if ended.exit_status == 0 else NOTHING
            self.post(AgentExited(instance_id=name, run=jobs.fetch_results(member, ended, kept)))
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the command, not hang it
            self.post(AgentExited(instance_id=name, error=error))
        finally:
            self.forget_peer(name)

    def _receive(self, name: str, records: Sequence[dict[str, Any]]) -> None:
        self.post(ReportsReceived(instance_id=name, reports=parse_reports(name, records)))

    def _peers_of(self, member: Member) -> list[EnvironmentPeer]:
        """Return the instances that can give a new one their environment: those in its zone first.

        Traffic between zones is billed, and the coordinator has enough to do. Several newcomers ask in
        different orders.
        """
        first, zone = self.registry.coordinator.instance_id, member.instance.zone
        others = list(self._peers.values())
        random.shuffle(others)
        others.sort(key=lambda peer: (peer.instance.zone != zone, peer.instance.instance_id == first))
        return [
            EnvironmentPeer(
                instance_id=peer.instance.instance_id,
                host=peer.instance.private_host or peer.instance.host,
                connect=partial(self._jobs.connect, peer),
            )
            for peer in others
        ]

    def _send(self, connection: Connection, member: Member) -> Run:
        """Send program, control file and command; return the run, which is not started yet."""
        launcher, recipe, program = self.launcher, self.recipe, self.program
        setup_at = launcher.clock.now()
        python = prepare(
            connection,
            recipe.setup,
            requirements_on(launcher, member.instance.instance_type, program.requirements),
            clock=launcher.clock,
            emit=launcher.emit,
            minimum_python=OLDEST_PYTHON,
            peers=self._peers_of(member),
        )
        self.storage.bring(connection, member, peer_of(member, partial(self._jobs.connect, member)))
        run = self._jobs.new_run(member, recipe.name, image_id=self.image_id, setup_at=setup_at)
        folder = folder_of(run)
        connection.send_tree(PACKAGE, f"{folder}/trainer")
        connection.send_bytes(ALIAS, f"{folder}/dlcloud/__init__.py")
        if program.files is not None:
            work = f"{folder}/work"
            send_files(connection, program.files, work, clock=launcher.clock, emit=launcher.emit)
        self.storage.link(connection, f"{folder}/work")
        self._send_control(connection, member, run)
        coordinator, name = self.registry.coordinator, member.instance.instance_id
        if name == coordinator.instance_id and 0 < coordinator.step <= self.restored:
            self.storage.restore(connection, coordinator.step, f"{folder}/checkpoints")
        command = program.agent(python, worker=name, coordinator=coordinator, upload=self._upload(connection))
        image, environment = recipe.setup.image, self.environment
        send_command(connection, folder, command, image=image, environment=environment)
        launcher.store.runs.add(run)
        return run

    def _upload(self, connection: Connection) -> list[str]:
        """Return the options by which an instance stores checkpoints in S3; none where it stores none."""
        target = self.recipe.checkpoints
        if target is None:
            return []
        tool = self.storage.tool_of(connection, target)
        return ["--to", target, "--tool", tool["tool"], "--variables", json.dumps(tool["variables"])]


def control_file(coordinator: Coordinator, *, worker: str, drain: str | None = None) -> bytes:
    """Return the control file of an instance; `trainer/settings.py` documents it."""
    values = {
        "generation": coordinator.generation,
        "minimum": coordinator.minimum,
        "drain": drain,
        "coordinator": f"{coordinator.host}:{PORT}",
        "coordinates": worker == coordinator.instance_id,
        "step": coordinator.step,
        "least": coordinator.least,
    }
    return json.dumps(values).encode() + b"\n"
