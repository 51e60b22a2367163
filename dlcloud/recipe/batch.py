"""A recipe as a job definition of AWS Batch: the same command on the same kind of instance, unmeasured.

Sources: AWS Batch API Reference, RegisterJobDefinition; AWS Batch User Guide, "Automated job retries" and
"Compute resource memory management", read 2026-11.
"""

import shlex
from collections.abc import Sequence
from typing import Any

from dlcloud.benchmarks.command.shell import reads_arguments, with_arguments
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import InstanceType
from dlcloud.recipe.batch_array import choose_trial, refuse_no_array
from dlcloud.recipe.batch_nodes import NODE_VARIABLES, node_notes, node_properties, refuse_unknown_nodes
from dlcloud.recipe.recipe import Recipe

IMAGE = "public.ecr.aws/docker/library/python:3.12"
"""The container image; a recipe's instances boot Ubuntu 24.04, whose Python is the same."""

MEMORY_SHARE = 0.9
"""The share of an instance's memory for the job; the operating system and the ECS agent need the rest."""

ATTEMPTS = 5
RETRIES = [
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onReason": "*", "action": "EXIT"},
]
"""An instance that was reclaimed is no fault of the job; any other end is its own."""

_FILES = "s3://BUCKET/FOLDER"
_FETCH = """mkdir -p /work && cd /work
pip install -q awscli && aws s3 cp --recursive --only-show-errors "$1" .
"""
_SUDO = 'command -v sudo >/dev/null || sudo() { "$@"; }\n'


def batch_job_definition(recipe: Recipe, types: Sequence[InstanceType], setting: str = "") -> dict[str, Any]:
    """Return the input of RegisterJobDefinition for a recipe whose workload is a command.

    Args:
        recipe: Of one command, run on one instance or as one job over all of them.
        types: Hardware of the recipe's instance types; the job asks for what the smallest has.
        setting: The name of one of the recipe's settings; needed where there are several.

    Raises:
        RecipeError: AWS Batch has nothing of the kind, or it is not clear which setting is meant.
    """
    _refuse_foreign(recipe)
    arguments, variables = _setting_of(recipe, setting)
    files = {"files": _FILES} if recipe.workload.files else {}
    command = ["bash", "-ec", _script(recipe, arguments), recipe.name, *(["Ref::files"] if files else [])]
    container = {
        "image": recipe.setup.image or IMAGE,
        "command": command,
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
        "resourceRequirements": requirements_of(types),
    }
    is_job = recipe.workload.nodes is not None
    work = (
        {"type": "multinode", "nodeProperties": node_properties(recipe, container)}
        if is_job
        else {"type": "container", "containerProperties": container}
    )
    return {
        "jobDefinitionName": recipe.name,
        **work,
        "platformCapabilities": ["EC2"],
        "parameters": files,
        "retryStrategy": {"attempts": ATTEMPTS, "evaluateOnExit": RETRIES},
        "timeout": {"attemptDurationSeconds": max(60, round(recipe.budget.max_hours * 3600))},
        "tags": {"dlcloud:recipe": recipe.name},
    }


def batch_notes(recipe: Recipe) -> list[str]:
    """Return what a job definition cannot say: the instances, where files come from, what is not measured."""
    instances, count = recipe.instances, recipe.instances.maximum
    is_job = recipe.workload.nodes is not None
    market = "SPOT" if "spot" in instances.market and not is_job else "EC2"
    types = ", ".join(instances.types)
    notes = [
        f"the queue's compute environment: type {market}, instanceTypes {types}, minvCpus 0",
        "nothing is measured there, and nothing limits the cost but the timeout of each attempt",
    ]
    if recipe.workload.files:
        upload = f"aws s3 cp --recursive {recipe.workload.files} {_FILES}"
        notes.append(f"files: {upload}; submit with --parameters files={_FILES}; the job's role must read it")
    if patterns := recipe.kept_files.patterns:
        notes.append(f"keep.files is left out: have the command copy {', '.join(patterns)} to S3")
    if recipe.workload.secrets:
        names = ", ".join(recipe.workload.secrets)
        notes.append(f"secrets are left out: add {names} to the container's secrets, by their ARNs")
    if is_job:
        notes += node_notes(recipe)
    elif recipe.experiment is not None:
        size = recipe.experiment.count
        notes.append(f"{size} trials: submit with --array-properties size={size}; child N is trial N + 1")
        notes.append("results stay in the jobs' logs and where the command writes them: none is ranked")
    elif count > 1:
        notes.append(f"{count} instances: submit with --array-properties size={count}")
    return notes


def _refuse_foreign(recipe: Recipe) -> None:
    workload = recipe.workload
    if workload.elastic is not None:
        raise RecipeError(
            f"{recipe.name} is an elastic training: a job of AWS Batch is restarted, not resized",
            f"dlcloud up {recipe.name}",
        )
    refuse_no_array(recipe)
    if workload.command is None:
        raise RecipeError(
            f"{recipe.name} runs the bundled benchmark {workload.benchmark}, which is measured by dlcloud",
            f"dlcloud up {recipe.name}",
        )
    if workload.nodes is not None:
        refuse_unknown_nodes(recipe)


def _setting_of(recipe: Recipe, name: str) -> tuple[list[str], dict[str, str]]:
    settings = {setting.name: setting for setting in recipe.workload.settings}
    if not name and len(settings) > 1:
        raise RecipeError(f"{recipe.name} has {len(settings)} settings", f"--setting {next(iter(settings))}")
    if name and name not in settings:
        raise RecipeError(f"{recipe.name} has no setting {name!r}", f"its settings: {', '.join(settings)}")
    common = dict(recipe.workload.environment)
    if not settings:
        return [], common
    chosen = settings[name or next(iter(settings))]
    return list(chosen.arguments), {**common, **chosen.environment}


def _script(recipe: Recipe, arguments: Sequence[str]) -> str:
    setup, workload = recipe.setup, recipe.workload
    lines = [set_up_script(recipe)]
    if setup.requirements:
        lines.append(f"pip install -q {shlex.join(setup.requirements)}\n")
    if workload.files:
        lines.append(_FETCH)
    if workload.nodes is not None:
        lines.append(NODE_VARIABLES)
    if recipe.experiment is not None:
        lines.append(choose_trial(recipe.experiment))
        command = workload.command or ""
        return "".join([*lines, command if reads_arguments(command) else f'{command.strip()} "$@"'])
    return "".join([*lines, with_arguments(workload.command or "", arguments)])


def set_up_script(recipe: Recipe) -> str:
    """Return the lines that run the recipe's set-up commands in a container; empty without any."""
    commands = recipe.setup.commands.strip()
    update = "apt-get update -qq\n" if "apt" in commands else ""
    return f"{_SUDO}{update}{commands}\n" if commands else ""


def requirements_of(types: Sequence[InstanceType], share: int = 1) -> list[dict[str, str]]:
    """Return what a container asks for: a share of the smallest of some types."""
    memory_mib = int(min(hardware.memory_gib for hardware in types) * 1024 * MEMORY_SHARE) // share
    requirements = [
        {"type": "VCPU", "value": str(max(1, min(hardware.vcpus for hardware in types) // share))},
        {"type": "MEMORY", "value": str(memory_mib)},
    ]
    gpus = min(hardware.gpu.count if hardware.gpu else 0 for hardware in types) // share
    return [*requirements, {"type": "GPU", "value": str(gpus)}] if gpus else requirements
