"""What runs on each instance of an elastic job: an agent, and the user's script as its worker."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import dlcloud.trainer
from dlcloud.core.errors import RecipeError
from dlcloud.core.recipe import Elastic, Recipe
from dlcloud.elastic.lead import Coordinator

PACKAGE = Path(dlcloud.trainer.__file__).parent
REQUIREMENTS = PACKAGE / "requirements" / "elastic.txt"
CONTROL = "control.json"
LAST_S = 5.0
"""A worker that is still there so long before its instance is taken is ended, so that its peers notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The training job of a recipe.

    Args:
        run: The name by which its workers know each other.
        command: The worker's, a shell command; `python3` in it is the environment's.
        requirements: Pinned packages, a line each.
        files: What is copied to where the command runs, or None.
        elastic: The recipe's part.
    """

    run: str
    command: str
    requirements: str
    files: Path | None
    elastic: Elastic

    def agent(self, python: str, *, worker: str, lead: Coordinator, port: int) -> str:
        """Return the shell command of an instance's agent, run in the folder that the command runs in.

        Args:
            python: The environment's interpreter.
            worker: The instance's name in the records.
            lead: The coordinator; it may be this instance.
            port: Of its lighthouse.
        """
        words = ["-m", "trainer.agent", "--folder", "..", "--run", self.run, "--worker", worker]
        words += ["--coordinator", lead.host, "--port", str(port)]
        words += ["--checkpoint-seconds", f"{self.elastic.checkpoint_seconds:g}"]
        words += ["--margin", f"{self.elastic.leave_seconds:g}"]
        # Who is asked to leave has half of that time before it is ended.
        words += ["--last-seconds", f"{min(LAST_S, self.elastic.leave_seconds / 2):g}"]
        words += ["--hash-every", str(self.elastic.exact_hash_every)]
        if worker == lead.instance_id:
            # How many workers a step needs may change while they train: the control file says it.
            words += ["--lighthouse", "--step", str(lead.step)]
        words += ["--", "sh", "-c", f"exec {self.command}"]
        return f"PYTHONPATH=.. exec {shlex.quote(python)} {shlex.join(words)}\n"

    def control(
        self, *, worker: str, workers: int, lead: Coordinator, port: int, drain: str | None = None
    ) -> bytes:
        """Return what the controller tells an agent; `trainer/control.py` says what it means."""
        wanted = {
            "generation": lead.generation,
            "minimum": lead.minimum,
            "workers": workers,
            "drain": drain,
            "coordinator": f"{lead.host}:{port}",
            "coordinates": worker == lead.instance_id,
            "step": lead.step,
            "least": lead.least,
        }
        return json.dumps(wanted).encode() + b"\n"


def program_of(recipe: Recipe, recipe_folder: Path, *, run: str) -> Program:
    """Return the training job of a recipe.

    Args:
        recipe: One whose workload is elastic.
        recipe_folder: Its paths are relative to this.
        run: The name by which the workers know each other.

    Raises:
        RecipeError: A file is missing.
    """
    workload = recipe.workload
    if workload.elastic is None or workload.command is None:
        raise RecipeError("workload: this is not an elastic one", "add elastic: {} to its command")
    files = None if workload.files is None else recipe_folder / workload.files
    if files is not None and not files.exists():
        raise RecipeError(
            f"workload.files: {files} does not exist", "the path is relative to the recipe's folder"
        )
    return Program(
        run=run,
        command=workload.command,
        requirements="\n".join([REQUIREMENTS.read_text(), *recipe.setup.requirements]),
        files=files,
        elastic=workload.elastic,
    )
