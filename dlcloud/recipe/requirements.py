"""`setup.requirements`: the packages of a workload, listed as people list them.

`include_requirements` puts the content of a named file into the recipe's text: a requirements file as pip
reads it, a `pyproject.toml` with its `uv.lock`, or an `environment.yml` of conda. What comes out is one list,
whose lines are of these kinds:

- a package: a name with extras, versions and a condition, or an address, with the hashes that it must have;
- an option of pip that names an index, such as `--extra-index-url …`;
- `-c NAME<2`: a constraint, which narrows the versions of a package that something else needs;
- `-e FOLDER`: a project of the user's own, relative to the recipe, whose files are sent with the workload;
- `# …`: what was left out, for the plan.

`app` has uv pin what `is_pinned` finds open, before anything is launched; `pip_lines` is what pip or uv gets.
"""

import codecs
import json
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.document import Value, parse

CONSTRAINT, PROJECT, NOTE = "-c ", "-e ", "# "
PINNED = f"{NOTE}uv pinned "
"""Begins the note of a list that uv has pinned."""

Read = Callable[[str], bytes | None]
"""Returns the content of a file, named relative to the recipe; None if there is none that can be read."""

_KEYS = ("setup", "requirements")
_FILE = re.compile(r"[^\s=@]+\.(txt|in|lock|toml|ya?ml)")
_INDEX_OPTIONS = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--pypi-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
}
_OTHER_OPTIONS = {"--pre", "--no-index", "--prefer-binary", "--require-hashes"}
_WITH_VALUE = {"--no-binary", "--only-binary", "--trusted-host", "--use-feature"}
_OPTION = re.compile(r"(--[a-z-]+|-[a-zA-Z])(?:\s*=\s*|\s+)?(.*)")
_HASH = re.compile(r"\s--hash[= ](\S+)")
_OF_A_REQUIREMENT = re.compile(r"\s--(?:config-settings?|global-option|install-option)[= ].*")
_ADDRESS = re.compile(r"(?:(?:git|hg|svn|bzr)\+|https?://)\S+")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar\.gz|tgz|tar\.bz2)(?:#.*)?$")
_COMMIT = re.compile(r"@[0-9a-f]{40}(?:#.*)?$")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_HINT = "pip install -r FILE, in a new environment, shows whether pip reads it"


def include_requirements(text: str, file: str, read: Read) -> str:
    """Return a recipe's text with the packages of a file in the place of its name.

    A recipe without such a name is returned as it is, faults included; lines keep their numbers.

    Args:
        text: The recipe's.
        file: Its name in messages.
        read: Returns the content of a file next to the recipe.

    Raises:
        RecipeError: There is no such file, or something in it cannot be installed on an instance.
    """
    document = parse(text)
    setup = document.value.get("setup") if isinstance(document.value, dict) else None
    value = setup.get("requirements") if isinstance(setup, dict) else None
    written = _logical_lines(value) if isinstance(value, str) else enumerate(value or (), start=1)
    lines = [str(line).strip() for _, line in written if isinstance(line, str)]
    if document.faults or not any(
        _FILE.fullmatch(line) or line.startswith(("-r", "--requirement")) for line in lines
    ):
        return text
    reader = _Reader(read=read)
    for line in lines:
        if _FILE.fullmatch(line):
            reader.read_file(line, "the recipe")
        else:
            reader.read_line(line, "the recipe", "")
    if reader.faults:
        place = f"{file}:{document.line_of(_KEYS)}: setup.requirements"
        raise RecipeError("\n".join(f"{place}: {fault}" for fault in reader.faults), _HINT)
    start, end = _span(text)
    line_ends = "\n" * text[start:end].count("\n")
    return f"{text[:start]}{json.dumps(list(dict.fromkeys(reader.lines)))}{line_ends}{text[end:]}"


def checked_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a recipe's own list, spelled alike.

    Raises:
        ValueError: One is none of the kinds that a list may have.
    """
    reader = _Reader(read=lambda _: None)
    for line in lines:
        if line.startswith((CONSTRAINT, NOTE)):
            reader.lines.append(line)
        else:
            reader.read_line(line, "", "")
    if reader.faults:
        raise ValueError(reader.faults[0].removeprefix(": "))
    return reader.lines


def are_pinned(lines: Sequence[str]) -> bool:
    """Return whether a list needs nothing of uv: what the user's own projects need is not listed in it."""
    if any(line.startswith(PINNED) for line in lines):
        return True
    return all(is_pinned(line) and not line.startswith(PROJECT) for line in lines)


def is_pinned(line: str) -> bool:
    """True unless a line leaves open which version is installed."""
    if line.startswith(CONSTRAINT):
        return False
    if line.startswith(("-", "#")):
        return True
    if "://" in line:
        address = line.partition(" --hash")[0].partition(" ; ")[0]
        return bool(_ARCHIVE.search(address) or _COMMIT.search(address))
    versions = list(_requirement(line).specifier)
    return any(one.operator in {"==", "==="} and not one.version.endswith(".*") for one in versions)


def name_of(line: str) -> str:
    """Return the name of the package that a line lists; empty if it names none."""
    if line.startswith(("#", "-")):
        return ""
    if egg := re.search(r"#(?:.*&)?egg=([\w.-]+)", line):
        return egg[1]
    match = _NAME.match(line)
    return match[0] if match is not None and not _ADDRESS.match(line) else ""


def pip_lines(lines: Sequence[str], *, with_hashes: bool = True) -> list[str]:
    """Return what pip and uv read of a list: neither notes nor projects."""
    read = [line for line in lines if not line.startswith((NOTE, PROJECT))]
    return read if with_hashes else [_HASH.sub("", line) for line in read]


def projects_of(lines: Sequence[str]) -> list[str]:
    """Return the folders of the user's own projects, relative to the recipe."""
    return [line.removeprefix(PROJECT) for line in lines if line.startswith(PROJECT)]


def notes_of(lines: Sequence[str]) -> list[str]:
    """Return what was left out of a list."""
    return [line.removeprefix(NOTE) for line in lines if line.startswith(NOTE)]


def with_requirements(text: str, lines: Sequence[str]) -> str:
    """Return a recipe's text with another list of packages."""
    value = parse(text).value
    content = value if isinstance(value, dict) else {}
    setup = content.get("setup")
    changed = {**(setup if isinstance(setup, dict) else {}), "requirements": list(lines)}
    return yaml.safe_dump({**content, "setup": changed}, sort_keys=False, allow_unicode=True)


def decode_text(content: bytes) -> str:
    """Return the text of a file as pip decodes it: by its byte order mark, else UTF-8."""
    marks = (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which is its beginning
        (codecs.BOM_UTF32_BE, "utf-32-be"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    )
    for mark, encoding in marks:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return content.decode("utf-8", "replace")


@dataclass
class _Reader:
    """Reads files of packages into lines; what it cannot use is a fault with its place."""

    read: Read
    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def read_file(self, name: str, named_by: str, *, constraints: bool = False) -> None:
        """Read a file of any of the known kinds."""
        content = self.read(name)
        if content is None:
            self.faults.append(f"there is no file {name} (named by {named_by}; names are relative to that)")
            return
        if name in self._open:
            self.faults.append(f"{name} includes itself")
            return
        self._open.append(name)
        text, folder = decode_text(content), posixpath.dirname(name)
        base = posixpath.basename(name)
        if base == "uv.lock":
            self.read_file(posixpath.join(folder, "pyproject.toml"), name)
        elif base == "pyproject.toml":
            self._read_project(text, name, folder)
        elif base.endswith((".yml", ".yaml")):
            self._read_conda(text, name, folder)
        else:
            for number, line in _logical_lines(text):
                self.read_line(line, f"{name}:{number}", folder, constraints=constraints)
        self._open.pop()

    def read_line(self, line: str, place: str, folder: str, *, constraints: bool = False) -> None:
        """Read a logical line of a requirements file in a folder."""
        if re.search(r"\$\{[A-Z0-9_]+\}", line) or re.search(r"://[^/\s@]*:[^/\s@]*@", line):
            fault = "holds or names a password, which would be stored with the run"
            self.faults.append(
                f"{place}: {_shown(line)} {fault}; setup.commands can write ~/.netrc from a secret"
            )
        elif line.startswith("-") and (match := _OPTION.fullmatch(line)) is not None:
            self._read_option(match[1], match[2].strip().strip("\"'"), place, folder)
        elif constraints:
            self._take(line, place, prefix=CONSTRAINT)
        else:
            self._read_package(line, place, folder)

    def _read_option(self, option: str, value: str, place: str, folder: str) -> None:
        shown = f"{option} {value}".strip()
        if option in {"-r", "--requirement", "-c", "--constraint"}:
            self.read_file(
                posixpath.normpath(posixpath.join(folder, value)), place, constraints="c" in option
            )
        elif option in {"-e", "--editable"}:
            if _ADDRESS.match(value):
                self._read_package(value, place, folder)
            else:
                self._take_project(value, place, folder)
        elif option in _INDEX_OPTIONS:
            if "://" in value and not value.startswith("file:"):
                self.lines.append(f"{_INDEX_OPTIONS[option]} {value}")
            else:
                fault = f"{place}: {shown}: a folder of this machine, which no instance has"
                self.faults.append(f"{fault}; name an index by its address")
        elif option in _OTHER_OPTIONS or (option in _WITH_VALUE and value):
            self.lines.append(shown)
        else:
            self.faults.append(f"{place}: {shown}: this option is not understood")

    def _read_package(self, line: str, place: str, folder: str) -> None:
        target = line.partition(" @ ")[2] or line
        if target.startswith("file:"):  # as pip freeze writes conda's packages
            fault = f"{place}: {line}: a file of this machine, which no instance has"
            self.faults.append(f"{fault}; pip list --format=freeze > requirements.txt writes versions")
        elif _ARCHIVE.search(target.split()[0]) and "://" not in target:
            fault = f"{place}: {line}: a file of this machine, which no instance has"
            self.faults.append(f"{fault}; name a version, or an address")
        elif _ADDRESS.match(line):
            self.lines.append(line)
        elif re.match(r"\.{0,2}/|\.{1,2}$|~", line):
            self._take_project(line, place, folder)
        else:
            self._take(line, place)

    def _take(self, line: str, place: str, prefix: str = "") -> None:
        """Take a package with a name, spelled as the standard has it."""
        hashes = "".join(f" --hash={digest}" for digest in _HASH.findall(line))
        bare = _OF_A_REQUIREMENT.sub("", _HASH.sub("", line)).strip()
        try:
            spelled = str(_requirement(bare))
        except ValueError as error:
            self.faults.append(f"{place}: {_shown(bare)} is no package: {str(error).splitlines()[0]}")
            return
        self.lines.append(f"{prefix}{spelled}{'' if prefix else hashes}")

    def _take_project(self, path: str, place: str, folder: str) -> None:
        bare = path.partition("[")[0].removeprefix("file:")
        if bare.startswith(("/", "~")):
            self.faults.append(f"{place}: {path}: name the project's folder relative to the recipe")
            return
        self.lines.append(f"{PROJECT}{posixpath.normpath(posixpath.join(folder, bare))}")

    def _read_project(self, text: str, name: str, folder: str) -> None:
        """Read the dependencies of a project, and the versions of its uv.lock as constraints."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self.faults.append(f"{name}: {error}")
            return
        project = content.get("project", {})
        if "dependencies" not in project:
            writes = "poetry export -o" if "poetry" in content.get("tool", {}) else "pip freeze >"
            fault = f"{name}: project.dependencies is missing"
            self.faults.append(
                f"{fault}; list them there, or write a requirements file: {writes} requirements.txt"
            )
            return
        lock = self.read(posixpath.join(folder, "uv.lock"))
        sources = content.get("tool", {}).get("uv", {}).get("sources", {})
        if sources and lock is None:
            self.faults.append(f"{name}: tool.uv.sources needs a uv.lock; uv lock writes it")
            return
        locked = {} if lock is None else self._read_lock(decode_text(lock), posixpath.join(folder, "uv.lock"))
        for line in project["dependencies"]:
            place = f"{name}: project.dependencies"
            if (source := locked.get(_normal(name_of(line)))) is not None:
                extras = re.search(r"\[.*?\]", line)
                self.lines.append(f"{name_of(line)}{extras[0] if extras else ''} @ {source}")
            else:
                self.read_line(line, place, folder)
        if "build-system" in content:
            self._take_project(".", name, folder)

    def _read_lock(self, text: str, name: str) -> dict[str, str]:
        """Take the versions of a uv.lock as constraints; return the addresses of packages of no index."""
        try:
            packages = tomllib.loads(text).get("package", [])
        except tomllib.TOMLDecodeError as error:
            self.faults.append(f"{name}: {error}")
            return {}
        versions: dict[str, list[str]] = {}
        addresses: dict[str, str] = {}
        for package in packages:
            source = package.get("source", {})
            if "registry" in source:
                versions.setdefault(package["name"], []).append(package["version"])
                index = source["registry"]
                if not index.startswith("https://pypi.org/") and "://" in index:
                    self.lines.append(f"--extra-index-url {index}")
            elif "git" in source:
                address, _, commit = source["git"].partition("#")
                addresses[package["name"]] = f"git+{address.partition('?')[0]}@{commit}"
            elif "url" in source:
                addresses[package["name"]] = source["url"]
        for package_name, pinned in versions.items():
            if len(pinned) == 1:  # of several, each has a condition, which uv decides again
                self.lines.append(f"{CONSTRAINT}{package_name}=={pinned[0].partition('+')[0]}")
        return addresses

    def _read_conda(self, text: str, name: str, folder: str) -> None:
        """Read an environment.yml: its pip part, and the packages of conda that PyPI has by the same name."""
        document = parse(text)
        content = document.value
        listed = content.get("dependencies") if isinstance(content, dict) else None
        if document.faults or not isinstance(listed, list):
            fault = document.faults[0].describe() if document.faults else "it has no list `dependencies`"
            self.faults.append(f"{name}: {fault}")
            return
        libraries: list[str] = []
        for index, entry in enumerate(listed):
            place = f"{name}:{document.line_of(('dependencies', index))}"
            if isinstance(entry, dict):
                for line in entry.get("pip") or ():
                    self.read_line(str(line), place, folder)
            elif isinstance(entry, str):
                self._read_conda_package(entry, place, libraries)
        if libraries:
            self.lines.append(
                f"{NOTE}{name}: {', '.join(libraries)}: left out, as PyPI's packages bring what they need"
            )

    def _read_conda_package(self, entry: Value, place: str, libraries: list[str]) -> None:
        match = re.fullmatch(r"(?:[\w./-]+::)?([\w.-]+?)\s*(?:\[.*\])?\s*([=<>!~ ].*)?", str(entry).strip())
        if match is None:
            self.faults.append(f"{place}: {entry} is no package of conda")
            return
        name, version = match[1].lower(), (match[2] or "").strip()
        if name in _CONDA_TOOLS:
            if name == "python":
                self.lines.append(
                    f"{NOTE}{place}: {entry} is left out: an instance's own Python runs the command"
                )
            return
        if _CONDA_LIBRARY.fullmatch(name):
            libraries.append(name)
            return
        if name not in _CONDA_SAME and name not in _CONDA_OTHER:
            fault = f"{place}: {name} is a package of conda, and may be another one on PyPI"
            self.faults.append(
                f"{fault}; list it under pip: if PyPI has it, or install it by setup.commands: "
                f"sudo apt-get install -y {name}"
            )
            return
        self._take(f"{_CONDA_OTHER.get(name, name)}{_pip_versions(version)}", place)


def _pip_versions(version: str) -> str:
    """Return versions of conda as pip writes them: `=1.26` means any 1.26, `=1.26.4=py312_0` one build."""
    if version.startswith("=") and not version.startswith("=="):
        number, _, build = version[1:].partition("=")
        return f"=={number}" if build or number.endswith("*") else f"=={number}.*"
    if version.startswith("=="):
        return f"=={version[2:].partition('=')[0]}"
    return f"=={version}" if version[:1].isdigit() else version


def _requirement(line: str) -> Any:  # noqa: ANN401  packaging is imported where a recipe lists packages
    """Return what a line means.

    Raises:
        ValueError: It is no requirement.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415  most commands read no packages

    return Requirement(line.partition(" --hash")[0])


def _normal(name: str) -> str:
    """Return the one spelling of a name. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _shown(line: str) -> str:
    """Return a line without what may be a password in it."""
    return repr(re.sub(r"://[^/\s@]*@", "://…@", line))


def _span(text: str) -> tuple[int, int]:
    """Return where the value of setup.requirements begins and ends in a recipe's text."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in _KEYS:
        node = next(value for name, value in node.value if name.value == key)
    return node.start_mark.index, node.end_mark.index


def _logical_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, continued ones joined, without comments."""
    pending, first = "", 0
    for number, raw in enumerate(content.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        first = first if pending else number
        if line.endswith("\\"):
            pending += f"{line[:-1].strip()} "
            continue
        if whole := f"{pending}{line}".strip():
            yield first, whole
        pending = ""
    if pending.strip():
        yield first, pending.strip()


_CONDA_TOOLS = ("pip", "python", "python_abi", "setuptools", "wheel")
_CONDA_LIBRARY = re.compile(
    r"_.*|lib(?!rosa|cst|sass).*|.*-ng|.*[-_]linux-64|cuda(?!-python).*|cudnn.*|cutensor|nccl|magma-.*"
    r"|pytorch-(?:cuda|mutex)|cpuonly|mkl.*|blas.*|openblas.*|nomkl|(?:intel|llvm)-openmp|tbb"
    r"|bzip2|c-ares|ca-certificates|expat|fontconfig|freetype|giflib|gmp|gnutls|icu|jpeg|krb5|lame|lcms2"
    r"|lerc|lz4-c|mpc|mpfr|ncurses|nettle|openh264|openjpeg|openssl|readline|sqlite|tk|tzdata|xz|yaml"
    r"|zlib|zstd"
)
"""Libraries that the image or the packages of PyPI bring. Source: `conda env export`, 2026-11."""
_CONDA_SAME = (
    "absl-py", "accelerate", "albumentations", "beautifulsoup4", "boto3", "catboost", "click",
    "cloudpickle", "cython", "dask", "datasets", "diffusers", "einops", "evaluate", "fastapi", "flask",
    "fsspec", "gensim", "gymnasium", "h5py", "huggingface_hub", "hydra-core", "imageio",
    "importlib-metadata", "ipykernel", "ipython", "ipywidgets", "jax", "jaxlib", "joblib", "jupyter",
    "jupyterlab", "keras", "lightgbm", "lightning", "matplotlib", "mlflow", "mypy", "networkx", "nltk",
    "notebook", "numba", "numpy", "omegaconf", "onnx", "onnxruntime", "openpyxl", "optuna", "packaging",
    "pandas", "peft", "pillow", "plotly", "polars", "protobuf", "psutil", "pyarrow", "pydantic",
    "pytest", "pytorch-lightning", "pyyaml", "ray", "regex", "requests", "rich", "s3fs", "sacrebleu",
    "librosa", "safetensors", "scikit-image", "scikit-learn", "scipy", "seaborn", "sentence-transformers",
    "sentencepiece", "shapely", "six", "spacy", "sqlalchemy", "statsmodels", "sympy", "tabulate",
    "tensorboard", "tensorboardx", "tensorflow", "tiktoken", "timm", "tokenizers", "torchaudio",
    "torchmetrics", "torchvision", "tqdm", "transformers", "typer", "umap-learn", "wandb", "webdataset",
    "xarray", "xgboost", "zarr",
)  # fmt: skip
"""Packages that conda-forge and PyPI have by the same name. Source: both, 2026-11."""
_CONDA_OTHER = {
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "py-xgboost": "xgboost",
    "pytables": "tables",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "seaborn-base": "seaborn",
    "tensorflow-cpu": "tensorflow-cpu",
    "tensorflow-gpu": "tensorflow",
}
