"""A recipe as a job definition of AWS Batch: the same command on the same kind of instance, unmeasured.

`export --as batch` writes one, for a command on one instance, one job over several nodes, or an array with a
child for each trial. `up --on batch` submits an array whose children report to a bucket.
What Batch cannot do as the recipe says is refused, or noted in the output.

Sources: AWS Batch API Reference, RegisterJobDefinition; AWS Batch User Guide, "Automated job retries" and
"Compute resource memory management", read 2026-11.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dlcloud.benchmarks.command.shell import reads_arguments, with_arguments
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import InstanceType
from dlcloud.recipe.experiment import VALUES_FILE, Experiment, trial_variables, trial_words
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.requirements import pip_lines, projects_of

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
pip install -q --no-cache-dir awscli && aws s3 cp --recursive --only-show-errors "$1" .
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
    requirements = requirements_of(types)
    container = {
        "image": recipe.setup.image or IMAGE,
        "command": command,
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
        "resourceRequirements": requirements,
        "linuxParameters": shared_memory_of(requirements),
    }
    is_job = recipe.is_one_job
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
    is_job = recipe.is_one_job
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
    if projects := projects_of(recipe.setup.requirements):
        message = f"{recipe.name} needs the project {projects[0]}, which a job of AWS Batch does not have"
        raise RecipeError(message, "publish it as a package, or copy it into workload.files")
    if workload.command is None:
        raise RecipeError(
            f"{recipe.name} runs the bundled benchmark {workload.benchmark}, which is measured by dlcloud",
            f"dlcloud up {recipe.name}",
        )
    if recipe.is_one_job:
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
        packages = "\n".join(pip_lines(setup.requirements))
        lines.append(f"pip install -q --no-cache-dir -r /dev/stdin <<'PACKAGES'\n{packages}\nPACKAGES\n")
    if workload.files:
        lines.append(_FETCH)
    if recipe.is_one_job:
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


def shared_memory_of(requirements: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the size of /dev/shm: half of the container's memory, as an instance has half of its own.

    Docker's 64 MB end PyTorch's DataLoader with workers by a bus error. Source: pytorch, issue 5040.
    """
    memory_mib = next(int(one["value"]) for one in requirements if one["type"] == "MEMORY")
    return {"sharedMemorySize": memory_mib // 2}


def requirements_of(types: Sequence[InstanceType], share: int = 1) -> list[dict[str, str]]:
    """Return what a container asks for: a share of the smallest of some types."""
    memory_mib = int(min(hardware.memory_gib for hardware in types) * 1024 * MEMORY_SHARE) // share
    requirements = [
        {"type": "VCPU", "value": str(max(1, min(hardware.vcpus for hardware in types) // share))},
        {"type": "MEMORY", "value": str(memory_mib)},
    ]
    gpus = min(hardware.gpu.count if hardware.gpu else 0 for hardware in types) // share
    return [*requirements, {"type": "GPU", "value": str(gpus)}] if gpus else requirements


SMALLEST = 2
MOST_ATTEMPTS = 10
"""Source: AWS Batch API reference, RetryStrategy."""
LONGEST_SCRIPT = 20_000
"""Characters of all trials' values: a task definition of ECS, which Batch makes, has at most 64 KiB.

Source: Amazon ECS service quotas, "Task definition size limit".
"""


def refuse_no_array(recipe: Recipe) -> None:
    """Refuse an experiment that Batch cannot run as an array.

    Raises:
        RecipeError: A search, a single trial, or more values than a job definition has room for.
    """
    experiment, hint = recipe.experiment, f"dlcloud up {recipe.name}"
    if experiment is None:
        return
    if experiment.search is not None:
        raise RecipeError(f"{recipe.name} searches: each trial depends on those before it", hint)
    if experiment.count < SMALLEST:
        raise RecipeError(f"{recipe.name} has one trial; an array job has at least {SMALLEST}", hint)
    if len(choose_trial(experiment)) > LONGEST_SCRIPT:
        message = f"the values of {experiment.count} trials have no room in a job definition"
        raise RecipeError(message, f"split the experiment, or {hint}")


def choose_trial(experiment: Experiment) -> str:
    """Return the lines of a script that set variables, arguments and the file of a child's trial."""
    cases = [
        _case(index, values, arguments=experiment.arguments)
        for index, values in enumerate(experiment.trials())
    ]
    return "\n".join(
        [
            'case "${AWS_BATCH_JOB_ARRAY_INDEX:?is set by an array job}" in',
            *cases,
            '*) echo "no trial $AWS_BATCH_JOB_ARRAY_INDEX" >&2; exit 64;;',
            "esac",
            "",
        ]
    )


def _case(index: int, values: Mapping[str, str], *, arguments: str) -> str:
    """Return what one child does; names of variables are such by the recipe's rules."""
    variables = trial_variables(values, index + 1)
    exports = shlex.join(["export", *(f"{name}={value}" for name, value in variables.items())])
    words = shlex.join(["set", "--", *trial_words(values, arguments)])
    document = shlex.quote(json.dumps(dict(values), sort_keys=True))
    return f"{index}) {exports}; {words}; printf %s {document} > {VALUES_FILE};;"


PORT = 29500
"""The port of the head; every node has its own network interface, so that any port is free."""

_OURS = re.compile(r"\bbenchmarks\.distributed\.[a-z_]+")
_UNKNOWN = ("DLCLOUD_NODE_ADDRESSES", "DLCLOUD_HOST_FILE", "DLCLOUD_SECRET", "TF_CONFIG")
"""What a node of AWS Batch does not know: it knows its own index, the count, and the head's address."""

NODE_VARIABLES = f"""RANK=$AWS_BATCH_JOB_NODE_INDEX WORLD_SIZE=$AWS_BATCH_JOB_NUM_NODES
MASTER_ADDR=${{AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-$(hostname -i | cut -d' ' -f1)}}
export RANK WORLD_SIZE MASTER_ADDR MASTER_PORT={PORT} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=$RANK
export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT={PORT}
export DLCLOUD_NODE_RANK=$RANK DLCLOUD_NODES=$WORLD_SIZE DLCLOUD_HEAD_ADDRESS=$MASTER_ADDR
"""
"""Shell lines: those variables of `dlcloud/benchmarks/nodes/node.py` that AWS Batch can give."""


def refuse_unknown_nodes(recipe: Recipe) -> None:
    """Refuse a job over nodes whose command needs what AWS Batch does not have.

    Raises:
        RecipeError: It runs a program of dlcloud's, or reads a variable that no node has there.
    """
    command = recipe.workload.command or ""
    if program := _OURS.search(command):
        raise RecipeError(
            f"{recipe.name} runs dlcloud's own program {program[0]}, which a job of AWS Batch does not have",
            f"dlcloud up {recipe.name} runs it; your own program is in workload.files",
        )
    if needed := next((name for name in _UNKNOWN if name in command), None):
        raise RecipeError(
            f"{recipe.name} reads {needed}; a node of AWS Batch knows its index, the count and the head",
            f"dlcloud up {recipe.name}",
        )


def node_properties(recipe: Recipe, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes of a job definition: all alike, the first the main node."""
    count = recipe.instances.maximum
    return {
        "numNodes": count,
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": f"0:{count - 1}", "container": dict(container)}],
    }


def node_notes(recipe: Recipe) -> list[str]:
    """Return in what a multi-node parallel job differs from a job of dlcloud."""
    notes = [
        f"{recipe.instances.maximum} nodes: nodeOverrides of submit-job change their number",
        f"not set there: {', '.join(_UNKNOWN)}, and ports but MASTER_PORT",
        "the job ends with rank 0; a failure of another node neither ends it nor retries it",
        "give the compute environment a cluster placement group, in one Availability Zone",
    ]
    if "spot" in recipe.instances.market:
        notes.append("on demand: AWS Batch runs no multi-node parallel job on Spot Instances")
    return notes


def refuse_no_batch(recipe: Recipe) -> None:
    """Refuse what AWS Batch cannot run as trials.

    Raises:
        RecipeError: Its trials are not known beforehand, or it has no bucket, or secrets, or data.
    """
    experiment, hint = recipe.experiment, f"dlcloud up {recipe.name}"
    if experiment is None:
        raise RecipeError("--on batch is for a recipe with an experiment", hint)
    if experiment.search is not None:
        raise RecipeError(f"{recipe.name} searches: each trial depends on those before it", hint)
    if recipe.results is None:
        raise RecipeError(
            "--on batch needs a bucket for the results", "results: s3://BUCKET/PREFIX in the recipe"
        )
    if recipe.workload.secrets:
        raise RecipeError("containers of AWS Batch get no secrets from dlcloud", hint)
    if recipe.data:
        raise RecipeError(
            "data: is not brought to containers of AWS Batch", "let the command read it from S3"
        )
    if recipe.keep.instances:
        raise RecipeError("AWS Batch ends its instances itself: none is kept", hint)


def trials_definition(recipe: Recipe, types: Sequence[InstanceType], program: str) -> dict[str, Any]:
    """Return the input of RegisterJobDefinition, without its name and the role.

    Args:
        recipe: With an experiment.
        types: Hardware of its instance types; a container asks for a share of the smallest.
        program: The text of the program that runs one trial.
    """
    share = recipe.experiment.per_instance if recipe.experiment is not None else 1
    requirements = requirements_of(types, share)
    return {
        "type": "container",
        "platformCapabilities": ["EC2"],
        "containerProperties": {
            "image": recipe.setup.image or IMAGE,
            "command": ["python3", "-c", program],
            "resourceRequirements": requirements,
            "linuxParameters": shared_memory_of(requirements),
        },
        # A trial that fails by itself counts as one; only a lost instance is Batch's to repeat.
        "retryStrategy": {"attempts": MOST_ATTEMPTS, "evaluateOnExit": RETRIES},
        "timeout": {"attemptDurationSeconds": max(60, round(recipe.budget.max_hours * 3600))},
    }


def describe_batch(recipe: Recipe) -> list[str]:
    """Return what a plan states of AWS Batch."""
    market = "SPOT" if "spot" in recipe.instances.market else "EC2 (on-demand)"
    return [
        f"by AWS Batch: one compute environment ({market}), one queue and one array job, removed at the end;",
        "Batch may launch one instance more than the count; trials begin only within max_hours",
        f"results return through {recipe.results}",
        f"containers of {recipe.setup.image or IMAGE}; AWS Batch chooses the GPU driver, if any",
        *(["spot only: AWS Batch does not use on-demand"] if "then" in recipe.instances.market else []),
    ]
