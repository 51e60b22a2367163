"""An experiment keeps its results while its command, its values and the files that it reads are the same."""

from dataclasses import dataclass, field

import pytest

from dlcloud.launch.user_files import check_files
from dlcloud.recipe.recipe import read_recipe
from dlcloud.runs.experiment_records import identity_of

SWEEP = """\
name: sweep
instances: {{types: c7i.large}}
workload: {{command: {command}, files: .}}
experiment: {{metric: time, matrix: {{lr: [1, 2]}}}}
"""
FILES = {
    "train.py": "from models.net import Net\nimport helpers\nopen('data.csv')\n",
    "models/net.py": "from . import layers\n",
    "models/layers.py": "",
    "helpers.py": "",
    "plot.py": "import matplotlib",
    "data.csv": "1,2",
    "config.yaml": "lr: 1",
    "sweep.yaml": SWEEP.format(command="python3 train.py"),
}


@dataclass
class Stored:
    """The store's runs, by the digest of their experiment."""

    runs: dict = field(default_factory=dict)

    def of_experiment(self, digest):
        return self.runs.get(digest, [])


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "work"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def identity(folder, command="python3 train.py", more=""):
    return identity_of(read_recipe(SWEEP.format(command=command) + more, "sweep.yaml"), check_files(folder))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("search.yaml", SWEEP.format(command="python3 other.py")),
        ("sweep.yaml", SWEEP.format(command="python3 train.py") + "# a comment\n"),
        ("plot.py", "import seaborn"),
        ("new.py", ""),
        ("README.md", "how to"),
        ("recipe.schema.json", "{}"),
        (".gitignore", "nothing\n"),
    ],
)
def test_a_file_that_the_command_cannot_read_changes_nothing(folder, name, text):
    first = identity(folder)
    (folder / name).write_text(text)
    assert identity(folder).digest == first.digest


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "pass"),
        ("models/layers.py", "x = 1"),
        ("helpers.py", "x = 1"),
        ("data.csv", "3"),
        ("config.yaml", "lr: 2"),
        ("more.csv", "1"),
    ],
)
def test_a_file_that_the_command_may_read_does(folder, name, text):
    first = identity(folder)
    (folder / name).write_text(text)
    assert identity(folder).digest != first.digest


@pytest.mark.parametrize("line", ["import importlib", "import pkgutil", "m = __import__(x)"])
def test_code_that_finds_modules_itself_may_read_all(folder, line):
    (folder / "train.py").write_text(line)
    first = identity(folder)
    (folder / "plot.py").write_text("x = 1")
    assert identity(folder).digest != first.digest


def test_a_file_that_is_named_counts_whatever_it_is(folder):
    (folder / "train.py").write_text("open('search.yaml'); open('README.md')")
    for name in ("search.yaml", "README.md"):
        (folder / name).write_text(SWEEP.format(command="x"))
        first = identity(folder)
        (folder / name).write_text(SWEEP.format(command="y"))
        assert identity(folder).digest != first.digest


def test_where_it_is_not_seen_what_runs_every_file_counts(folder):
    first = identity(folder, command="make all")
    (folder / "plot.py").write_text("x = 1")
    assert identity(folder, command="make all").digest != first.digest


def test_what_has_changed_is_said(folder, tmp_path):
    first = identity(folder)
    first.store(tmp_path)
    stored = Stored({first.digest: [1, 2, 3]})
    assert first.describe_change(tmp_path, stored) == ""
    (folder / "train.py").write_text("import helpers\n")
    (folder / "more.csv").write_text("1")
    (folder / "data.csv").unlink()
    now = identity(folder, command="python3 train.py --fast", more="region: eu-west-1\n")
    assert now.describe_change(tmp_path, stored) == (
        "the 3 runs of sweep before do not count: changed: workload.command, train.py; new: more.csv; "
        "gone: data.csv and 2 more"
    ).replace("data.csv and 2 more", "data.csv, models/layers.py, models/net.py")


def test_nothing_is_said_of_experiments_without_runs_or_of_another_name(folder, tmp_path):
    first = identity(folder)
    first.store(tmp_path)
    (folder / "train.py").write_text("import helpers\n")
    assert identity(folder).describe_change(tmp_path, Stored()) == ""
