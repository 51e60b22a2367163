"""Which launcher of distributed programs a command starts, and if that makes one job of all instances.

torchrun takes the other nodes from the variables that `dlcloud/benchmarks/nodes/node.py` sets. Others know
them by options alone: a command without these is a job on each instance, or was meant to be one over all.
The command does not show which, so the recipe must say it.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from dlcloud.model.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher that a command starts; `over_all` is None if it may be meant for one instance or for all."""

    name: str
    over_all: bool | None


_ALL = {
    "accelerate launch": "accelerate launch --num_machines $DLCLOUD_NODES --machine_rank $NODE_RANK "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT",
    "deepspeed": "deepspeed --hostfile $DLCLOUD_HOST_FILE --no_ssh --node_rank $NODE_RANK "
    "--master_addr $MASTER_ADDR --master_port $MASTER_PORT",
}
"""What a command must say to be one job over all nodes. Others log in by SSH, without keys for it."""
_BY_MPI = "python3 -m benchmarks.distributed.mpirun in place of"


def unclear_nodes(launcher: str, count: int) -> RecipeError:
    """Return the question that a command leaves open which starts a launcher on several instances."""
    form = _ALL.get(launcher, f"{_BY_MPI} {launcher}")
    return RecipeError(
        f"workload.command starts {launcher} on {count} instances: one job over all, or one on each?",
        "set workload.nodes: each"
        + (", or workload.nodes: all" if launcher == "torchrun" else f", or workload.nodes: all with {form}"),
    )


def find_launcher(command: str) -> Launcher | None:
    """Return the launcher that a shell command starts; None if it starts none that is known."""
    launchers = [
        launcher for words in _simple_commands(command) if (launcher := _launcher_of(words)) is not None
    ]
    if not launchers:
        return None
    meanings = {launcher.over_all for launcher in launchers}
    return launchers[0] if len(meanings) == 1 else Launcher(name=launchers[0].name, over_all=None)


def find_launcher_of_make(makefile: str, targets: Sequence[str]) -> Launcher | None:
    """Return the launcher that the targets of a Makefile start, or what they need; None if they start none.

    Without targets, it is the first one.
    """
    rules: dict[str, tuple[list[str], list[str]]] = {}
    values: dict[str, str] = {}
    named: list[str] = []
    for line in makefile.replace("\\\n", " ").splitlines():
        if line.startswith("\t"):
            for name in named:
                rules[name][1].append(line.strip().lstrip("@-+"))
        elif match := re.match(r"(\w+)\s*(?:::?|[?+])?=\s*(.*)", line):
            values[match[1]] = match[2]
        elif match := re.match(r"([\w./ -]+?)\s*::?(?!=)([^;#]*)", line):
            named = match[1].split()
            for name in named:
                rules.setdefault(name, ([], []))[0].extend(match[2].split())
    left, visited, commands = list(targets) or [*rules][:1], set[str](), list[str]()
    while left:
        name = left.pop(0)
        if name in rules and name not in visited:
            visited.add(name)
            needed, lines = rules[name]
            left += needed
            commands += lines
    text = "\n".join(commands)
    for _ in range(MOST_EXPANSIONS):
        text = re.sub(r"\$[({](\w+)[)}]", lambda match: values.get(match[1], ""), text)
    return find_launcher(text)


MOST_EXPANSIONS = 3
"""How deep variables of a Makefile may name others."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner": "horovodrun",
    "benchmarks.distributed.mpirun": "benchmarks.distributed.mpirun",
}
_PROGRAMS = {
    "torchrun": "torchrun",
    "mpirun": "mpirun",
    "mpirun.openmpi": "mpirun",
    "mpirun.mpich": "mpirun",
    "mpiexec": "mpirun",
    "mpiexec.hydra": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
    "accelerate-launch": "accelerate launch",
    "deepspeed": "deepspeed",
    "horovodrun": "horovodrun",
}
_KNOWS_NODES = ("torchrun", "benchmarks.distributed.mpirun")
"""These learn the other nodes from variables."""
_NODES = ("--nnodes", "--num_machines", "--num_nodes", "--nnode")
"""Options that state a number of nodes."""
_ONE_NODE = ("--standalone", "--include=localhost")
_OTHER_NODES = ("--node_rank", "--machine_rank", "--main_process_ip", "--no_ssh", "--rdzv_endpoint")
_HOSTS = ("-H", "--host", "--hosts", "-host")
_WRAPPER = re.compile(
    r"if|then|else|elif|do|while|until|!|\{|exec|time|env|nohup|sudo|command|nice|ionice|stdbuf|timeout"
    r"|numactl|taskset|setsid|chrt|uvx?|poetry|pipenv|pixi|hatch|pdm|conda|mamba|micromamba"
    r"|nsys|ncu|rocprof|perf|strace|unbuffer|xvfb-run|systemd-run"
)
"""What may stand before a program that it starts."""
_SHELLS = ("bash", "sh", "dash", "zsh")
_PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_COMMENT = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<![^\s;&|()])#[^\n]*", re.DOTALL)
_SEPARATORS = ";&|()\n"


def _simple_commands(command: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a script; nothing of one whose quotes do not match."""
    text = _COMMENT.sub(lambda match: "" if match[0].startswith("#") else match[0], command)
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.strip(_SEPARATORS):
                words.append(word)
            elif words:
                yield words
                words = []
    except ValueError:
        return
    if words:
        yield words


def _launcher_of(words: Sequence[str]) -> Launcher | None:
    """Return the launcher that a simple command starts, by itself or through a wrapper such as `env`."""
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if not words:
        return None
    program = PurePosixPath(words[0]).name
    if program in _SHELLS:
        inner = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
        return find_launcher(words[inner + 1]) if inner is not None and inner + 1 < len(words) else None
    if _WRAPPER.fullmatch(program):
        launchers = (_launcher_of(words[at:]) for at in range(1, len(words)))
        return next((launcher for launcher in launchers if launcher is not None), None)
    if _PYTHON.fullmatch(program) and "-m" in words[:-1]:
        at = words.index("-m")
        if not all(word.startswith("-") for word in words[1:at]):
            return None  # the -m of a script
        name, arguments = _MODULES.get(words[at + 1]), words[at + 2 :]
        if words[at + 1] in {"accelerate", "accelerate.commands.accelerate_cli"}:
            name, arguments = _accelerate(arguments)
    elif program == "accelerate":
        name, arguments = _accelerate(words[1:])
    else:
        name, arguments = _PROGRAMS.get(program), words[1:]
    return None if name is None else Launcher(name=name, over_all=_is_over_all(name, arguments))


def _accelerate(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    return ("accelerate launch", arguments[1:]) if arguments[:1] == ["launch"] else (None, ())


def _is_over_all(name: str, arguments: Sequence[str]) -> bool | None:
    """Return what the options of a launcher say: one job over all, a job on each, or None for neither."""
    options: dict[str, str] = {}
    for at, word in enumerate(arguments):
        option, has_value, value = word.partition("=")
        option = re.sub(r"(?<=\w)-", "_", option) if option.startswith("--") else option
        options.setdefault(option, value if has_value else next(iter(arguments[at + 1 : at + 2]), ""))
        if not word.startswith("-") and word.endswith(".py"):
            break  # what follows are the script's own
    nodes = next((options[name] for name in _NODES if name in options), None)
    hosts = next((options[name] for name in _HOSTS if name in options), None)
    if nodes in {"1", "1:1"} or any(option in options for option in _ONE_NODE) or _is_here(hosts):
        return False
    if name in _KNOWS_NODES:
        return True
    return True if any(option in options for option in _OTHER_NODES) else None


def _is_here(hosts: str | None) -> bool:
    return re.fullmatch(r"(?:localhost|127\.0\.0\.1)(?::\d+)?", hosts or "") is not None
