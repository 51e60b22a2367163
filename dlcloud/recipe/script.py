"""A user's Python script as its syntax tree shows it: imports, arguments, GPU use, printed throughput."""

import ast
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dlcloud.model.errors import RecipeError

FRAMEWORKS = (
    *("transformers", "lightning", "pytorch_lightning", "accelerate", "fastai", "diffusers", "torch"),
    *("keras", "tensorflow", "flax", "jax", "xgboost", "lightgbm", "catboost", "sklearn"),
    *("onnxruntime", "openvino"),
)
TRAINERS = frozenset({"dlcloud.trainer", "trainer"})
REPORTER = "dlcloud_report"
DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "cv2": "opencv-python-headless",
        "dateutil": "python-dateutil",
        "docx": "python-docx",
        "dotenv": "python-dotenv",
        "faiss": "faiss-cpu",
        "fitz": "pymupdf",
        "git": "gitpython",
        "hydra": "hydra-core",
        "mpl_toolkits": "matplotlib",
        "PIL": "pillow",
        "pkg_resources": "setuptools",
        "skimage": "scikit-image",
        "sklearn": "scikit-learn",
        "tensorflow": "tensorflow-cpu",
        "umap": "umap-learn",
        "yaml": "pyyaml",
    }
)
"""Distributions whose names are not those of their modules. Source: PyPI, 2026-11."""

COMMON = frozenset(
    {"albumentations", "datasets", "einops", "evaluate", "gensim", "h5py", "huggingface_hub", "imageio"}
    | {"ipython", "joblib", "jsonargparse", "librosa", "matplotlib", "mlflow", "nbformat", "nltk", "numba"}
    | {"numpy", "omegaconf", "openai", "optuna", "pandas", "peft", "polars", "psutil", "pyarrow", "ray"}
    | {"requests", "rich", "safetensors", "scipy", "seaborn", "sentence_transformers", "sentencepiece"}
    | {"soundfile", "spacy", "tensorboard", "tensorboardX", "timm", "tokenizers", "torch_geometric"}
    | {"torchaudio", "torchmetrics", "torchvision", "tqdm", "trl", "typer", "wandb"}
)
"""Further packages that are what their names say: `utils` and `models` on an index are a stranger's."""

GPU_MODULES = frozenset(
    {"apex", "bitsandbytes", "cudf", "cuml", "cupy", "deepspeed", "flash_attn", "pycuda", "triton", "unsloth"}
    | {"vllm", "xformers"}
)
"""Packages that need a GPU."""
HALVES = frozenset(
    {"bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "load_in_4bit", "load_in_8bit"}
)
"""Arguments that mean a GPU if they are true."""
GPU_WORDS = re.compile(
    r"(?i)cuda(:\d+)?|gpu(:\d+)?|/gpu:\d+|gpu_hist|nccl|(bf)?16-(mixed|true)|mixed_b?float16|bf16|fp16"
)
"""Texts that mean a GPU as an argument: `accelerator="gpu"`, `mixed_precision="bf16"`."""
GPU_USERS = frozenset({"Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer", "Accelerator"})
"""Classes of Transformers, TRL, Accelerate and Lightning that use a GPU if there is one."""
STAYS_ON_CPU = frozenset({"use_cpu", "no_cuda", "cpu"})
GPU_COMMAND = re.compile(
    r"(?i)\bcuda|nvidia-smi|--(?:bf16|fp16|tf32)\b(?![= ]*false)|mixed[_-]precision[= ](?:bf16|fp16)|"
    r"(?:device|accelerator)[= ]gpu\b"
)
"""What means a GPU in a shell script."""

_FIGURE = r"[0-9](?:[0-9.,_]{0,30}[0-9])?(?:[eE][+-]?[0-9]{1,3})?[kKMGT]?"
NUMBER = rf"(?<![0-9.,_]){_FIGURE}"
BEFORE = r"([0-9][0-9.,e+]{0,24}[kKM]?)"
"""The group of a recipe's expression before the words; bounded, so that a long line takes linear time."""
AFTER = r"([0-9.]+)"
"""The group after the words; what reads it takes the whole number of which a part matches."""
_UNIT = (
    r"images?|imgs?|samples?|examples?|sequences?|seqs?|tokens?|toks?|steps?|iterations?|iters?|its?|"
    r"batch(?:es)?|frames?|records?|rows?|items?|words?|sentences?|documents?|docs?|queries|requests?|"
    r"predictions?|videos?|clips?|episodes?"
)
PER_SECOND = re.compile(
    rf"(?:(?<![A-Za-z])|(?<=[0-9][kKM]))(?:({_UNIT})(?:[\s_]?/[\s_]?|[\s_]per[\s_])s(?:ec(?:ond)?s?)?|(fps))(?![A-Za-z])",
    re.IGNORECASE,
)
"""A throughput in words: images/sec, samples per second, it/s, train_samples_per_second, fps."""
PER_ITEM = re.compile(rf"(?<![0-9.,_])[0-9][0-9.]{{0,15}}\s?(?:s|ms|us|µs)/({_UNIT})\b", re.IGNORECASE)
"""The time of one item, as Keras (9ms/step) and tqdm (1.25s/it) print it."""
RESUMED = (
    ("dlcloud_report", r"\bcheckpoint\(", "dlcloud_report.checkpoint"),
    ("transformers", r"\b\w*Trainer\(", "Hugging Face's Trainer"),
    ("lightning", r"\bTrainer\(", "Lightning"),
    ("pytorch_lightning", r"\bTrainer\(", "Lightning"),
    ("keras", r"\.fit\(", "Keras"),
    ("tensorflow", r"\bkeras\b[\s\S]*\.fit\(", "Keras"),
    ("xgboost", r"\.(?:fit|train)\(", "XGBoost"),
    ("lightgbm", r"\.(?:fit|train)\(", "LightGBM"),
)
"""What resumes after an interruption: a module, a call, and its name; see `dlcloud.benchmarks.resume`."""
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "img": "images",
        "imgs": "images",
        "it": "steps",
        "its": "steps",
        "iter": "steps",
        "iters": "steps",
        "iteration": "steps",
        "iterations": "steps",
        "batch": "batches",
        "fps": "frames",
        "tok": "tokens",
        "toks": "tokens",
        "seq": "sequences",
        "seqs": "sequences",
        "doc": "documents",
        "docs": "documents",
    }
)
LONGEST_LINE = 10_000
"""Characters of a line of output that are looked at."""
SAVED_BY_CALLS = frozenset({"TrainingArguments", "Seq2SeqTrainingArguments"})
"""They write checkpoints into the folder that they are given."""
WRITTEN_BY_CALLS = frozenset(
    {"save", "save_file", "save_weights", "save_model", "save_pretrained", "savez", "savetxt", "savefig"}
    | {"to_csv", "to_parquet", "to_json", "makedirs", "open", *SAVED_BY_CALLS}
)
"""Functions of PyTorch, Transformers, Keras, NumPy, Matplotlib and pandas that write what they are given."""
WRITTEN_BY_ARGUMENTS = frozenset(
    {
        "output_dir",
        "logging_dir",
        "save_dir",
        "log_dir",
        "checkpoint_dir",
        "ckpt_dir",
        "dirpath",
        "project_dir",
    }
    | {"default_root_dir", "overwrite_output_dir", "results_dir", "save_path", "out_dir", "--output_dir"}
    | {"--output-dir", "--out", "--save-dir", "--save_dir", "--checkpoint-dir", "--log-dir"}
)
SAVED_BY_ARGUMENTS = frozenset(
    {"output_dir", "checkpoint_dir", "ckpt_dir", "--output_dir", "--output-dir", "--checkpoint-dir"}
)
"""Those of checkpoints."""
WRITING = re.compile(r"[wax]b?\+?")
PLAIN_FILE = re.compile(r"(?:\./)?(?:[\w-][\w.-]*/)*[\w-][\w.-]*/?")
_HOLE = "12.5"
"""Stands for each value that is formatted into a text."""


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
        is_relative: It imports relatively, so that it only runs as a module of its package.
        framework: The first of FRAMEWORKS that it imports; empty without one.
        implied: Modules that it needs without importing them, such as torch for transformers.
        arguments: Its optional arguments (`--batch-size`), with their defaults where these are plain.
        required: Arguments that must be given.
        throughput: What it prints of its throughput; None where that is not seen.
        bar: The throughput of the progress bar that it shows, which counts only if it prints none.
        gpu: What shows that it uses a GPU; empty if nothing does.
        uses_bf16: It computes in bfloat16, which GPUs before Ampere lack.
        paths: The folders that it adds to sys.path.
        written: The files and folders that it writes below its folder, as far as they are named in it.
        saved: Those folders of them that have its checkpoints.
        reports: It reports its throughput by dlcloud_report.
        resumes: What resumes it after an interruption with `resume: auto`; empty if nothing is seen.
    """

    modules: frozenset[str]
    is_relative: bool = False
    framework: str = ""
    implied: tuple[str, ...] = ()
    arguments: Mapping[str, str]
    required: tuple[str, ...]
    throughput: Throughput | None
    bar: Throughput | None = None
    gpu: str = ""
    uses_bf16: bool = False
    paths: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    resumes: str = ""
    reports: bool = False

    @property
    def is_elastic(self) -> bool:
        """True if it trains by dlcloud.trainer."""
        return bool(self.modules & TRAINERS)

    def foreign(self, local: Collection[str]) -> list[str]:
        """Return the modules that packages must bring: none of Python's or dlcloud's, and none of its own."""
        roots = {module.partition(".")[0] for module in (*self.modules, *self.implied)}
        return sorted(roots - set(sys.stdlib_module_names) - set(local) - {"dlcloud", "trainer", REPORTER})

    def packages(self, local: Collection[str]) -> list[str]:
        """Return the distributions that it needs, without the names of its own modules (`local`)."""
        return sorted(DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in self.foreign(local))


def read_script(text: str, name: str, *, package: str = "") -> Script:
    """Read a script without running it; `package` is the one that its relative imports start from.

    Raises:
        RecipeError: It is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RecipeError(f"{name}{line}: this is no Python: {error}", "python3 runs it first") from error
    nodes = list(ast.walk(tree))
    modules = frozenset(_modules(nodes, package))
    roots = {module.partition(".")[0] for module in modules}
    arguments = list(_arguments(nodes))
    gpu = next(_gpu_signs(nodes, roots), "")
    return Script(
        modules=modules,
        is_relative=any(isinstance(node, ast.ImportFrom) and node.level for node in nodes),
        framework=next((name for name in FRAMEWORKS if name in roots), ""),
        implied=tuple(_implied(nodes, roots, text)),
        arguments={name: default for name, default, is_required in arguments if not is_required},
        required=tuple(name for name, _, is_required in arguments if is_required),
        throughput=_printed_throughput(nodes, roots),
        bar=_bar_of_script(nodes, roots),
        gpu=gpu or ("cuda" if "cuda" in text.lower() else ""),
        uses_bf16=bool(gpu) and "bf16" in text.lower(),
        paths=tuple(dict.fromkeys(_paths(nodes))),
        written=tuple(dict.fromkeys(_written(nodes, WRITTEN_BY_CALLS, WRITTEN_BY_ARGUMENTS))),
        saved=tuple(dict.fromkeys(_written(nodes, SAVED_BY_CALLS, SAVED_BY_ARGUMENTS))),
        # One that imports it for its checkpoints alone reports none.
        reports=REPORTER in modules
        and (re.search(r"\b(?:step|throughput)\(", text) is not None or "checkpoint(" not in text),
        resumes=next(
            (title for module, call, title in RESUMED if module in roots and re.search(call, text)), ""
        ),
    )


def distribution_of(requirement: str) -> str:
    """Return the distribution that a requirement names, in the one spelling that an index knows.

    Builds of one package for other hardware count as that package. Source: PEP 503.
    """
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    spelled = re.sub(r"[-_.]+", "-", name).lower()
    return re.sub(r"-contrib|-(cpu|gpu)$", "", spelled.removesuffix("-headless"))


def throughput_of_output(lines: Iterable[str], *, bars: bool = True) -> Throughput | None:
    """Return how a throughput is read from lines that a script has printed; None if they have none.

    What a line states comes before the bars of tqdm and Keras, which count only with `bars`; what is said of
    training comes before evaluation, and samples before steps.
    """
    throughputs = [
        (throughput, _is_bar(line))
        for line in lines
        for throughput in _throughputs_of_line(line[:LONGEST_LINE])
    ]
    stated = [throughput for throughput, is_bar in throughputs if not is_bar]
    if stated:
        return min(stated, key=_rank)
    shown = [throughput for throughput, is_bar in throughputs if is_bar and bars]
    return max(shown, key=shown.count) if shown else None


def spell(unit: str) -> str:
    """Return a unit as recipes write it: in full, and as a plural."""
    lower = unit.lower()
    plural = SPELLINGS.get(lower, lower)
    return plural if plural.endswith("s") else f"{plural}s"


_BAR = re.compile(r"%\|.*\||\[\d+:\d+|[━╸]{2}|\d+/\d+ \[[=>.]*\]")
_COUNTS = re.compile(rf"(?i)\b(?:epoch|step|iter|iteration|batch|rank|fold)\W{{0,2}}{_FIGURE}\s{{0,9}}\Z")
"""A number that counts, before the words of a throughput: `epoch 3 images/s: 12.5`."""
_BEFORE = re.compile(rf"{NUMBER}((?: [kMGT] )?\s{{0,9}})\Z")
_AFTER = re.compile(rf"""([\w/]{{0,30}}["']?\s{{0,9}}(?:[:=]\s{{0,9}})?["']?)(?={NUMBER})""")
_THROUGHPUT = re.compile(rf"(?i)\b(throughput)\s{{0,9}}[:=]\s{{0,9}}(?={NUMBER})")


def _is_bar(line: str) -> bool:
    return _BAR.search(line) is not None


def _rank(throughput: Throughput) -> tuple[bool, bool]:
    name = (throughput.json_field or throughput.pattern).lower()
    return re.search(
        r"(?<![a-z])(eval|val|valid|validation|test|predict)_", name
    ) is not None, throughput.unit in {
        "steps",
        "batches",
    }


def _throughputs_of_line(line: str) -> Iterator[Throughput]:
    if (document := _json_object(line)) is not None:
        yield from _throughputs_of_fields(document, "")
        return
    has_throughput = False
    for unit in PER_SECOND.finditer(line):
        if pattern := _pattern_around(line, unit):
            has_throughput = True
            yield Throughput(unit=spell(unit[1] or unit[2]), pattern=pattern)
    for unit in PER_ITEM.finditer(line):
        has_throughput = True
        yield Throughput(unit=spell(unit[1]), pattern=_rate_or_time(unit[1]))
    if not has_throughput and (match := _THROUGHPUT.search(line)):
        yield Throughput(unit="items", pattern=rf"{match[1]}\W{{1,4}}{AFTER}")


def _throughputs_of_fields(document: Mapping[str, object], above: str) -> Iterator[Throughput]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _throughputs_of_fields(value, f"{above}{name}.")
        elif (unit := PER_SECOND.search(name)) and re.fullmatch(_FIGURE, str(value)) and "." not in name:
            yield Throughput(unit=spell(unit[1] or unit[2]), json_field=f"{above}{name}")


def _json_object(line: str) -> dict[str, object] | None:
    if not line.lstrip().startswith('{"'):
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _pattern_around(line: str, unit: re.Match[str]) -> str:
    """Return the expression for the number before the unit, or after it; empty if there is none."""
    text, after = line[: unit.start()], _AFTER.match(line, unit.end())
    if (before := _BEFORE.search(text)) and not (after and _COUNTS.search(text)):
        if _is_bar(line) and unit[1]:
            return _rate_or_time(unit[1])
        if before[1].strip():
            return rf"([0-9][0-9.,]{{0,24}}(?: ?[kMGT])?) {_escape(unit[0])}"
        return rf"{BEFORE}{before[1] and ' ?'}{_escape(unit[0])}"
    if after is None:
        return ""
    name = re.search(r"[\w.]{0,40}\Z", text)
    rest = re.match(r"[\w/]*", after[1])
    words = _escape((name[0] if name else "") + unit[0] + (rest[0] if rest else ""))
    return rf"{words}\W{{1,4}}{AFTER}"


def _escape(words: str) -> str:
    return re.escape(words).replace("\\ ", " ")


def _rate_or_time(unit: str) -> str:
    """Return the expression for a bar, which shows a rate, or the time of one item if that is long.

    Keras shows 0s/step where it has measured nothing yet.
    """
    word = _escape(unit)
    return rf"(?<![0-9.])(?!0[a-z])([0-9.]{{1,12}}[kKM]?(?={word}/s)|[0-9.]{{1,12}}[mu]?s(?=/{word}))"


def _modules(nodes: list[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _prefixes(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level and package else []
            if node.level and not above:
                continue
            module = ".".join([*above, *filter(None, [node.module])])
            yield from _prefixes(module)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _prefixes(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _calls(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls with the names of their functions, without what these are attributes of."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield getattr(node.func, "id", getattr(node.func, "attr", "")), node


def _implied(nodes: list[ast.AST], roots: set[str], text: str) -> Iterator[str]:
    """Yield modules that others import only when they are used: backends, and what Trainer needs."""
    names = {name for name, _ in _calls(nodes)}
    keywords = {word for word, _ in _settings(nodes)}
    if "transformers" in roots:
        if not roots & {"tensorflow", "jax", "flax", "torch"}:
            yield "torch"
        if names & {"Trainer", "Seq2SeqTrainer", "TrainingArguments"} or "device_map" in keywords:
            yield "accelerate"
    if "transformers" in roots and {"load_in_4bit", "load_in_8bit"} & keywords:
        yield "bitsandbytes"
    if "keras" in roots and not roots & {"tensorflow", "torch", "jax"}:
        backend = re.search(r"KERAS_BACKEND\W{1,8}(torch|jax)", text)
        yield backend[1] if backend else "tensorflow"


def _settings(nodes: list[ast.AST]) -> Iterator[tuple[str, object]]:
    """Yield names with the plain values that they are given: arguments, attributes, keys of dictionaries."""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg, _constant(node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, _constant(value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if name := getattr(target, "attr", getattr(target, "id", "")):
                    yield name, _constant(node.value)


def _gpu_signs(nodes: list[ast.AST], roots: set[str]) -> Iterator[str]:
    """Yield what shows that a script uses a GPU, the surest first."""
    settings = list(_settings(nodes))
    for name, value in settings:
        if name in HALVES and value is True:
            yield f"{name}=True"
        elif name == "device_map" and value != "cpu":
            yield f"device_map={value!r}" if value else "device_map"
        elif isinstance(value, str) and GPU_WORDS.fullmatch(value):
            yield f"{name}={value!r}"
    yield from (f"import {name}" for name in sorted(roots & GPU_MODULES))
    stays = {name for name, value in settings if name in STAYS_ON_CPU and value is True}
    stays |= {name for name, value in settings if name in {"accelerator", "device"} and value == "cpu"}
    for name, call in _calls(nodes):
        texts = [word for part in call.args if isinstance(word := _constant(part), str)]
        gpu_word = next((word for word in texts if GPU_WORDS.fullmatch(word)), "")
        if gpu_word and name not in {"print", "get", "add_argument", "info"}:
            yield f"{name}({gpu_word!r})"
        if name in GPU_USERS and not stays and roots & {"transformers", "trl", "accelerate", *LIGHTNING}:
            yield name


LIGHTNING = ("lightning", "pytorch_lightning")


def _arguments(nodes: list[ast.AST]) -> Iterator[tuple[str, str, bool]]:
    """Yield the arguments of argparse: name, default as text, and whether each must be given."""
    for name, node in _calls(nodes):
        if name != "add_argument" or not isinstance(node.func, ast.Attribute):
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


def _paths(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the folders that are added to sys.path by name."""
    for name, node in _calls(nodes):
        if name in {"insert", "append"} and "sys.path" in ast.unparse(node.func):
            for part in ast.walk(node):
                if isinstance(word := _constant(part), str) and PLAIN_FILE.fullmatch(word):
                    yield word.removeprefix("./").rstrip("/")


def _written(nodes: list[ast.AST], by_calls: Collection[str], by_arguments: Collection[str]) -> Iterator[str]:
    """Yield the names of files and folders that are saved, or opened for writing."""
    texts: list[object] = []
    for name, node in _calls(nodes):
        words = [_constant(part) for part in node.args]
        mode = words[1] if len(words) > 1 else None
        is_read = name == "open" and not (isinstance(mode, str) and WRITING.fullmatch(mode))
        if name in by_calls and not is_read:
            texts += words[:2]
        if name == "add_argument" and words and words[0] in by_arguments:
            texts += [_constant(part.value) for part in node.keywords if part.arg == "default"]
    texts += [value for name, value in _settings(nodes) if name in by_arguments]
    for word in texts:
        if isinstance(word, str) and PLAIN_FILE.fullmatch(word) and not WRITING.fullmatch(word):
            yield word.removeprefix("./").rstrip("/")


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _printed_throughput(nodes: list[ast.AST], roots: set[str]) -> Throughput | None:
    """Return the throughput in the texts that are printed or logged, or that a Trainer prints at its end."""
    throughputs = [one for text in _printed(nodes) for one in _throughputs_of_line(text)]
    if throughputs:
        return min(throughputs, key=_rank)
    names = {name for name, _ in _calls(nodes)}
    if roots & {"transformers", "trl"} and "train" in names and any("Trainer" in name for name in names):
        return throughput_of_output(["{'train_samples_per_second': '12.5'}"])
    return None


def _bar_of_script(nodes: list[ast.AST], roots: set[str]) -> Throughput | None:
    """Return the throughput of the bar that Keras, Lightning or tqdm shows; None if it is turned off."""
    quiet = {("verbose", 0), ("disable", True), ("enable_progress_bar", False)}
    if quiet & {(name, value) for name, value in _settings(nodes) if isinstance(value, int)}:
        return None
    names = {name for name, _ in _calls(nodes)}
    if roots & {"keras", "tensorflow"} and "fit" in names:
        return Throughput(unit="steps", pattern=_rate_or_time("step"))
    if ("tqdm" in roots and names & {"tqdm", "trange"}) or (set(LIGHTNING) & roots and "fit" in names):
        units = [str(value) for name, value in _settings(nodes) if name == "unit" and value]
        unit = units[0] if units else "it"
        return Throughput(unit=spell(unit), pattern=_rate_or_time(unit))
    return None


def _printed(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the texts that are printed or logged, with `_HOLE` for each value in them."""
    for name, node in _calls(nodes):
        if name in {"print", "info", "write", "echo", "warning", "log", "tqdm_write"}:
            is_log = name == "log" and any(isinstance(part, ast.Dict) for part in node.args)
            if not is_log:  # of a tracker, which prints nothing
                yield " ".join(_text_with_holes(part) for part in node.args)


def _text_with_holes(node: ast.expr) -> str:
    """Return a text with a number for each value that is formatted into it: an f-string, or % and format."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[-+ 0-9.]*[dfgse]|\{[^{}]*\}", _HOLE, text)
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else _HOLE for v in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text_with_holes(left) + _text_with_holes(right)
        case ast.BinOp(left=left):
            return _text_with_holes(left)
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return _text_with_holes(value)
        case ast.Call(func=ast.Attribute(attr="dumps"), args=[first, *_]):
            return _text_with_holes(first).replace("'", '"')
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            inside = (f"{_constant(key)!r}: {_text_with_holes(value)}" for key, value in pairs)
            return f"{{{', '.join(inside)}}}"
    return _HOLE
