"""What runs on each instance of an elastic training: an agent, and the user's script as its worker."""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dlcloud.trainer
from dlcloud.launch.user_files import check_files
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.workload import Elastic
from dlcloud.trainer.settings import LIGHTHOUSE_PORT

PACKAGE = Path(dlcloud.trainer.__file__).parent
ALIAS = b"""# Scripts import dlcloud.trainer, as on a laptop: it is the folder trainer beside this one.
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

Revision = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The instance that runs lighthouse and ledger, and what every worker has to know of it.

    Attributes:
        generation: Failovers before it; 0 is the coordinator that the run began with.
        step: Steps that were committed when it took over.
        minimum: Workers that every step needs.
        least: Committed steps of the newest state of a survivor; no worker trains on an older state.
    """

    member: Member
    generation: int = 0
    step: int = 0
    minimum: int = 1
    least: int = 0

    @property
    def instance_id(self) -> str:
        return self.member.instance.instance_id

    @property
    def revision(self) -> Revision:
        """Changes with every change that the workers have to be informed of."""
        return self.generation, self.least, self.minimum

    @property
    def host(self) -> str:
        """The address for the other instances."""
        return self.member.instance.private_host or self.member.instance.host


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
            upload: Options of `trainer.uploader`, which then runs beside the agent.
        """
        elastic = self.elastic
        words = ["-m", "trainer.agent", "--folder", "..", "--run", self.run, "--worker", worker]
        words += ["--coordinator", coordinator.host, "--port", str(PORT)]
        words += ["--checkpoint-seconds", f"{elastic.checkpoint_seconds:g}"]
        words += ["--margin", f"{elastic.leave_seconds:g}"]
        # A worker has at least half of that time to leave before it is killed.
        words += ["--last-seconds", f"{min(LAST_S, elastic.leave_seconds / 2):g}"]
        words += ["--hash-every", str(elastic.exact_hash_every), "--end-alone-after", f"{END_ALONE_S:g}"]
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


def control_file(coordinator: Coordinator, *, worker: str, drain: str | None = None) -> bytes:
    """Return the control file of an instance; `trainer/control.py` documents it."""
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


def program_of(recipe: Recipe, recipe_folder: Path, *, run: str) -> TrainingProgram:
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
        command=workload.command,
        # An image brings its own PyTorch.
        requirements=""
        if recipe.setup.image
        else "\n".join([REQUIREMENTS.read_text(), *recipe.setup.requirements]),
        files=files,
        elastic=workload.elastic,
        image=recipe.setup.image,
        workload=workload.model_dump_json(),
    )
