"""The packages of a workload before the launch: open versions are pinned by uv, missing pins are named.

`pin_packages` has uv choose versions for the instances' Python and processor. It does so once: the lock is
kept in the dlcloud home by what was asked for, so that an interrupted `up` continues with the same packages.
The pinned list takes the place of the recipe's, and is stored with its runs.
"""

import configparser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.launch.setup import MISSING
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import Event, Info, Warned
from dlcloud.model.instance import ARM64
from dlcloud.recipe.recipe import RecipeFile, read_recipe
from dlcloud.recipe.requirements import (
    CONSTRAINT,
    NOTE,
    PINNED,
    PROJECT,
    are_pinned,
    is_pinned,
    name_of,
    pip_lines,
    projects_of,
    with_requirements,
)
from dlcloud.store.home import Paths
from dlcloud.system.files import write_file
from dlcloud.system.parallel import all_or_raise, fan_out

PYTHON = "3.12"
"""Of the images that dlcloud chooses: Ubuntu 24.04, AWS's Deep Learning AMIs of it too."""
PLATFORMS = {"x86_64": "x86_64-manylinux_2_39", "aarch64": "aarch64-manylinux_2_39"}
"""uv's names of Ubuntu 24.04, by processor as Python names it."""
COMPILE_S = 600
CUDA = re.compile(r"(?:nvidia-|cuda-)[\w.-]+|triton|pytorch-triton")
"""Packages that PyTorch's builds for CUDA pin themselves; its builds for CPUs have none."""
MOST_NAMED = 3
TIMEOUT_S = 30
MOST = 8
"""Packages that are looked up at a time."""
_PIP = (sys.executable, "-m", "pip")
_QUIET = ("--disable-pip-version-check", "--no-input")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_NO_INDEX = re.compile(r"Failed to fetch|dns error|[Cc]ould not connect|error sending request")

Emit = Callable[[Event], None]


def pin_packages(
    file: RecipeFile, *, paths: Paths, emit: Emit, types: Sequence[str] = (), cloud: str = ""
) -> RecipeFile:
    """Return a recipe whose packages are all pinned, with its text; one without open versions as it is.

    Args:
        file: The recipe.
        paths: Of the dlcloud home, which keeps the locks.
        emit: Takes what was pinned.
        types: The instance types, if not those of the recipe.
        cloud: Likewise.

    Raises:
        RecipeError: uv is missing, or no versions fit.
    """
    recipe = file.recipe
    lines = recipe.setup.requirements
    if are_pinned(lines):
        return file
    pinned = _pinned(
        lines,
        folder=Path(file.path).parent,
        processors=_processors(types or recipe.instances.types) if (cloud or recipe.cloud) == "aws" else [],
        paths=paths,
        emit=emit,
    )
    text = with_requirements(file.text, pinned)
    changed = read_recipe(text, file.path or recipe.name)
    setup = recipe.setup.model_copy(update={"requirements": changed.setup.requirements})
    return replace(file, recipe=recipe.model_copy(update={"setup": setup}), text=text)


def _processors(types: Sequence[str]) -> list[str]:
    """Return the processors of instance types, as Python names them."""
    catalog = Catalog()
    kinds = [catalog.hardware(name) or catalog.relative(name) for name in types]
    return sorted(
        {"aarch64" if kind is not None and kind.architecture == ARM64 else "x86_64" for kind in kinds}
    )


def _pinned(
    lines: Sequence[str], *, folder: Path, processors: Sequence[str], paths: Paths, emit: Emit
) -> list[str]:
    """Return the lines of the lock for these, made now or by an earlier command."""
    version = PYTHON if processors else _python_version()
    projects = [(folder / path / "pyproject.toml") for path in projects_of(lines)]
    content = [file.read_text("utf-8", "replace") if file.is_file() else "" for file in projects]
    asked = json.dumps([list(lines), list(processors), version, content])
    lock = paths.locks / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.txt"
    if lock.is_file():
        return lock.read_text("utf-8").splitlines()
    named = ", ".join(line for line in lines if not is_pinned(line) and not line.startswith(CONSTRAINT))
    uv = shutil.which("uv")
    if uv is None:
        raise RecipeError(
            f"setup.requirements leaves versions open ({named or 'a constraint'}), "
            "and uv, which pins them, is not installed",
            "pip install uv; or write name==version",
        )
    locks = {name: _compile(uv, lines, folder, name, version) for name in processors or [""]}
    every = list(dict.fromkeys(line for pins in locks.values() for line in pins))
    pinned = [
        _for_processors(line, [name for name, pins in locks.items() if line in pins], locks) for line in every
    ]
    whose = f"Python {version} on {' and '.join(processors) or 'this machine'}"
    kept = [line for line in lines if line.startswith((NOTE, PROJECT)) or _is_option(line)]
    packages = sum(not line.startswith("-") for line in pinned)
    whole = [f"{PINNED}{packages} packages for {whose}", *kept, *pinned]
    paths.make_folder(lock.parent)
    write_file(lock, "\n".join(whole))
    emit(Info(message=f"uv pinned {packages} packages for {whose}; remove {lock} to have them pinned again"))
    return whole


def _is_option(line: str) -> bool:
    return line.startswith("-") and not line.startswith((CONSTRAINT, PROJECT))


def _for_processors(line: str, names: Sequence[str], locks: dict[str, list[str]]) -> str:
    """Return a line with a condition if only some of the processors have it."""
    if len(names) == len(locks):
        return line
    requirement, separator, hashes = line.partition(" --hash")
    condition = " or ".join(f'platform_machine == "{name}"' for name in names)
    return f"{requirement}; {condition}{separator}{hashes}"


def _compile(uv: str, lines: Sequence[str], folder: Path, processor: str, version: str) -> list[str]:
    """Return the packages with their versions that uv chooses."""
    asked = [line for line in pip_lines(lines) if not line.startswith(CONSTRAINT)]
    asked += [f"-e {(folder / path).absolute()}" for path in projects_of(lines)]
    constraints = [line.removeprefix(CONSTRAINT) for line in lines if line.startswith(CONSTRAINT)]
    has_hashes = any("--hash=" in line for line in asked)
    options = ["--quiet", "--no-header", "--no-annotate", "--color", "never", "--no-strip-extras"]
    options += ["--python-version", version, "--no-python-downloads", "--index-strategy", "unsafe-best-match"]
    options += ["--python-platform", PLATFORMS[processor]] if processor else []
    options += ["--generate-hashes"] if has_hashes else []
    options += ["--prerelease", "allow"] if "--pre" in asked else []
    with tempfile.TemporaryDirectory(prefix="dlcloud-") as place:
        source, limits = Path(place, "requirements.in"), Path(place, "constraints.txt")
        source.write_text("\n".join(asked) + "\n", "utf-8")
        limits.write_text("\n".join(constraints) + "\n", "utf-8")
        command = [
            uv,
            "pip",
            "compile",
            *options,
            *_pip_settings(),
            "--constraints",
            str(limits),
            str(source),
        ]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RecipeError(f"setup.requirements: uv cannot pin the versions: {error}") from error
    if done.returncode:
        raise _refusal(done.stderr)
    output = [line for line in done.stdout.replace("\\\n", " ").splitlines() if line.strip()]
    packages = [" ".join(line.split()) for line in output if not line.startswith(("-", "#"))]
    listed = {name_of(line) for line in asked}
    if has_hashes:  # pip then wants a hash of everything
        return packages
    return [line for line in packages if name_of(line) in listed or not CUDA.fullmatch(name_of(line))]


def _refusal(output: str) -> RecipeError:
    text = re.sub(r"[\s\u00d7╰─▶│]+", " ", output.partition("\nhint:")[0]).strip()
    if _NO_INDEX.search(text):
        message = "setup.requirements leaves versions open, and the package index does not answer uv"
        return RecipeError(f"{message}: {text[:300]}", "write name==version, or try again with a network")
    return RecipeError(
        f"setup.requirements: uv finds no versions that fit: {text[:1000]}", "change setup.requirements"
    )


def _python_version() -> str:
    """Return the version of the Python that instances of the local EC2 have: this machine's."""
    command = [
        shutil.which("python3") or sys.executable,
        "-c",
        "import sys; print('%d.%d' % sys.version_info[:2])",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"{sys.version_info.major}.{sys.version_info.minor}"


def _pip_settings() -> Iterator[str]:
    """Yield uv's options for the indexes and constraints of pip's configuration, which uv does not read."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    names = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"]
    own = os.environ.get("PIP_CONFIG_FILE", os.devnull)
    parser.read([str(Path(name).expanduser()) for name in [*names, own]], "utf-8")
    for option in ("index-url", "extra-index-url", "find-links", "constraint"):
        stored = parser.get("install", option, fallback=parser.get("global", option, fallback=""))
        value = os.environ.get(f"PIP_{option.upper().replace('-', '_')}", stored)
        for word in value.split():
            if "://" in word or Path(word).exists():
                yield from (f"--{option}", word)
    if os.environ.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on"}:
        yield "--no-index"


def warn_of_requirements(requirements: Sequence[str], emit: Emit) -> None:
    """Warn of pinned packages that the index does not have; an index that does not answer is no fault."""
    if any(line.startswith("-") for line in requirements) or any(
        line.startswith(NOTE) for line in requirements
    ):
        return  # of another index, or found by uv a moment ago
    named = [line for line in requirements if "://" not in line and ";" not in line]
    plain = [line.partition(" --hash")[0] for line in named]
    missing = all_or_raise(fan_out(is_missing, plain, width=MOST))
    for requirement, is_gone in zip(plain, missing, strict=True):
        if is_gone:
            message = f"setup.requirements: {requirement} is not in this machine's package index"
            emit(Warned(message=f"{message}: the environment could not be built"))


def is_missing(requirement: str) -> bool:
    """True if the index answers, and does not have a pinned package."""
    if (uv := shutil.which("uv")) is not None:
        return _is_refused(
            (uv, "pip", "compile", "--no-deps", "--quiet", "--color", "never", "-"), requirement
        )
    if find_spec("pip") is None or _is_listed(requirement):
        return False
    options = ("--dry-run", "--no-deps", "--ignore-installed", *_QUIET)
    return _is_refused((*_PIP, "install", "--quiet", *options, "-r", "/dev/stdin"), requirement)


def _is_listed(requirement: str) -> bool:
    """True if pip lists the version of a package; only what it does not list may be spelled otherwise.

    Many a pip downloads a package whose installation it only tries: 600 MB for TensorFlow.
    """
    package, _, version = requirement.partition("==")
    done = _run((*_PIP, "index", "versions", "--pre", *_QUIET, package.partition("[")[0]))
    listed = _VERSIONS.search(done.stdout) if done is not None else None
    return listed is not None and version in listed[1].split(", ")


def _is_refused(command: Sequence[str], requirement: str) -> bool:
    """True if a tool finds that the index does not have the package on its input."""
    done = _run(command, requirement)
    if done is None or done.returncode == 0:
        return False
    return MISSING.search(" ".join(done.stderr.split())) is not None


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str] | None:
    """Run a tool; None if it cannot be run, or does not end in time."""
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
