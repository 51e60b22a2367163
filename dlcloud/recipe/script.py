"""A user's Python script as its syntax tree shows it: imports, arguments, the throughput that it prints."""

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dlcloud.model.errors import RecipeError

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "sklearn", "xgboost", "onnxruntime", "openvino")
TRAINERS = frozenset({"dlcloud.trainer", "trainer"})
REPORTER = "dlcloud_report"
DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {
        "sklearn": "scikit-learn",
        "cv2": "opencv-python-headless",
        "PIL": "pillow",
        "yaml": "pyyaml",
        "skimage": "scikit-image",
        "bs4": "beautifulsoup4",
        "dateutil": "python-dateutil",
        "tensorflow": "tensorflow-cpu",
    }
)
"""Distributions whose names are not those of their modules. Source: PyPI, 2026-11."""
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
UNITS = r"(images?|imgs?|samples?|examples?|sequences?|tokens?|steps?|iterations?|it|batch(?:es)?|frames?)"
PER_SECOND = re.compile(rf"\b{UNITS}\s*(?:/|per )\s*s(?:ec(?:ond)?s?)?\b", re.IGNORECASE)
"""A throughput in words: images/sec, samples per second, it/s."""
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {"img": "images", "imgs": "images", "it": "steps", "iterations": "steps", "batch": "batches"}
)
SAVERS = frozenset(
    {"save", "save_file", "save_weights", "savez", "savetxt", "savefig", "to_csv", "to_parquet"}
)
"""Functions of PyTorch, safetensors, Keras, NumPy, Matplotlib and pandas that write a file."""
WRITING = re.compile(r"[wax]b?\+?")
PLAIN_FILE = re.compile(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*\.\w+")
_HOLE = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How a throughput is read from the output of a script.

    Exactly one of `pattern` (a regular expression with one group) and `json_field` is given.
    """

    unit: str
    pattern: str = ""
    json_field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script needs and prints.

    Attributes:
        modules: The modules that it imports, with their packages (`dlcloud.trainer`).
        framework: The first of FRAMEWORKS that it imports; empty without one.
        arguments: Its optional arguments (`--batch-size`), with their defaults where these are plain.
        required: Arguments that must be given.
        throughput: What it prints of its throughput; None where that is not seen.
        uses_cuda: It mentions CUDA.
        written: The files that it writes below its folder, as far as they are named in it.
    """

    modules: frozenset[str]
    framework: str
    arguments: Mapping[str, str]
    required: tuple[str, ...]
    throughput: Throughput | None
    uses_cuda: bool
    written: tuple[str, ...] = ()

    @property
    def is_elastic(self) -> bool:
        """True if it trains by dlcloud.trainer."""
        return bool(self.modules & TRAINERS)

    @property
    def reports(self) -> bool:
        """True if it reports its throughput by dlcloud_report."""
        return REPORTER in self.modules

    def packages(self, local: Collection[str]) -> list[str]:
        """Return the distributions that it needs, without the names of its own modules (`local`)."""
        roots = {module.partition(".")[0] for module in self.modules}
        foreign = roots - set(sys.stdlib_module_names) - set(local) - {"dlcloud", "trainer", REPORTER}
        return sorted(DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in foreign)


def read_script(text: str, name: str) -> Script:
    """Read a script without running it.

    Raises:
        RecipeError: It is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RecipeError(f"{name}{line}: this is no Python: {error}", "python3 runs it first") from error
    nodes = list(ast.walk(tree))
    modules = frozenset(_modules(nodes))
    roots = {module.partition(".")[0] for module in modules}
    arguments = list(_arguments(nodes))
    return Script(
        modules=modules,
        framework=next((name for name in FRAMEWORKS if name in roots), ""),
        arguments={name: default for name, default, is_required in arguments if not is_required},
        required=tuple(name for name, _, is_required in arguments if is_required),
        throughput=next(_printed_throughputs(nodes), None),
        uses_cuda="cuda" in text.lower(),
        written=tuple(dict.fromkeys(_written(nodes))),
    )


def distribution_of(requirement: str) -> str:
    """Return the distribution that a requirement names, in the one spelling that an index knows.

    Builds of one package for other hardware count as that package. Source: PEP 503.
    """
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    spelled = re.sub(r"[-_.]+", "-", name).lower()
    return re.sub(r"-contrib|-(cpu|gpu)$", "", spelled.removesuffix("-headless"))


def throughput_of_output(lines: Collection[str]) -> Throughput | None:
    """Return how a throughput is read from lines that a script has printed; None if they have none."""
    for line in lines:
        if (unit := PER_SECOND.search(line)) and (pattern := _pattern_around(line, unit)):
            return Throughput(unit=spell(unit[1]), pattern=pattern)
    return None


def spell(unit: str) -> str:
    """Return a unit as recipes write it: in full, and as a plural."""
    lower = unit.lower()
    plural = SPELLINGS.get(lower, lower)
    return plural if plural.endswith("s") else f"{plural}s"


def _pattern_around(line: str, unit: re.Match[str]) -> str:
    """Return the expression for the number before the unit, or after it; empty if there is none."""
    words = re.escape(unit[0])
    if re.search(rf"{NUMBER}\s*$", line[: unit.start()]):
        return rf"{NUMBER}\s*{words}"
    after = re.match(rf"(\s*[:=]?\s*){NUMBER}", line[unit.end() :])
    return rf"{words}\s*[:=]?\s*{NUMBER}" if after else ""


def _modules(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _prefixes(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _prefixes(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "dlcloud")


def _prefixes(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _arguments(nodes: list[ast.AST]) -> Iterator[tuple[str, str, bool]]:
    """Yield the arguments of argparse: name, default as text, and whether each must be given."""
    for node in nodes:
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        names = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
        if not names:
            continue
        keywords = {part.arg: part.value for part in node.keywords}
        is_option = names[0].startswith("-")
        is_required = _constant(keywords.get("required")) is True or (
            not is_option and "nargs" not in keywords
        )
        default = _constant(keywords.get("default"))
        longest = max(names, key=len)
        yield longest, "" if default is None else str(default), is_required


def _written(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names of files that are saved, or opened for writing."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        words = [part.value for part in node.args if isinstance(part, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if name in SAVERS or (name == "open" and WRITING.fullmatch((texts[1:] or [""])[0])):
            yield from (text for text in texts[:1] if PLAIN_FILE.fullmatch(text))


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _printed_throughputs(nodes: list[ast.AST]) -> Iterator[Throughput]:
    """Yield the throughputs in the texts that are printed or logged, from their constant parts."""
    for node in nodes:
        if isinstance(node, ast.Call) and _is_output(node.func):
            for part in node.args:
                if (throughput := _throughput_in(part)) is not None:
                    yield throughput


def _is_output(function: ast.expr) -> bool:
    name = getattr(function, "id", getattr(function, "attr", ""))
    return name in {"print", "info", "write", "echo", "warning", "log"}


def _throughput_in(node: ast.expr) -> Throughput | None:
    text = _text_with_holes(node)
    unit = PER_SECOND.search(text)
    if unit is None:
        return None
    words = re.escape(unit[0])
    if re.search(rf"{_HOLE}\s*$", text[: unit.start()]):
        return Throughput(unit=spell(unit[1]), pattern=rf"{NUMBER}\s*{words}")
    if re.match(rf"\s*[:=]?\s*{_HOLE}", text[unit.end() :]):
        return Throughput(unit=spell(unit[1]), pattern=rf"{words}\s*[:=]?\s*{NUMBER}")
    return None


def _text_with_holes(node: ast.expr) -> str:
    """Return a text with a hole for each value that is formatted into it: an f-string, or % and format."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[-+ 0-9.]*[dfgse]|\{[^{}]*\}", _HOLE, text)
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else _HOLE for v in values)
        case ast.BinOp(left=left):
            return _text_with_holes(left)
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return _text_with_holes(value)
    return ""
