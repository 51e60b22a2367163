"""`dlcloud init train.py`: what it sees, what it sends, and the trial of ten seconds."""

import json
import sys
import textwrap

import pytest

from dlcloud.app.clusters.script_check import warn_of_script
from dlcloud.app.recipes.init_script import Trial, recipe_of_script, run_trial
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def write(folder, text, name="train.py"):
    (folder / name).write_text(textwrap.dedent(text))
    return folder / name


def test_the_command_writes_a_recipe_and_its_schema(dlcloud, home):
    file = write(home.parent, 'print(f"{1 + 1} images/s")')
    done = dlcloud("init", "train.py", "-o", "json")
    assert (done.status, json.loads(done.stdout)["result"]["file"]) == (0, "train.yaml")
    text = file.with_suffix(".yaml").read_text()
    recipe = read_recipe(text, "train.yaml")
    assert (recipe.name, recipe.workload.files, recipe.workload.unit) == ("train", "train.py", "images")
    assert "properties" in json.loads((home.parent / "recipe.schema.json").read_text())
    again = dlcloud("init", "train.py")
    assert (again.status, "exists and was not changed" in again.stderr) == (2, True)


def test_a_folder_is_sent_where_the_script_uses_its_files(folder):
    alone = write(folder, "import json")
    assert 'files: "train.py"' in recipe_of_script(alone, Trial())[0]
    write(folder, "x = 1", "model.py")
    assert 'files: "."' in recipe_of_script(write(folder, "import model"), Trial())[0]
    write(folder, "1", "data.csv")
    assert 'files: "."' in recipe_of_script(write(folder, 'open("data.csv")', "other.py"), Trial())[0]


def test_versions_come_from_requirements_or_from_what_is_installed(folder):
    file = write(folder, "import yaml, nosuchpackage")
    text, notes = recipe_of_script(file, Trial())
    assert "pyyaml==" in text
    assert "# - nosuchpackage==" in text
    assert "versions are missing of nosuchpackage: pin them in the recipe" in notes
    write(folder, "numpy==2.0.1  # why\nclick\n-r other.txt\n", "requirements.txt")
    pins = read_recipe(recipe_of_script(file, Trial())[0], "train.yaml").setup.requirements
    assert pins[0] == "numpy==2.0.1"
    assert pins[1].startswith("click==")


def test_a_trial_sees_what_the_script_prints_and_ends_it(folder):
    file = write(
        folder,
        """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        unit = "images"
        while True:
            print("rate", 12.5, unit + "/s", flush=True)
            time.sleep(0.01)
        """,
    )
    trial = run_trial(file, 1.5)
    assert (trial.ran, trial.status) == (True, None)
    text, notes = recipe_of_script(file, trial)
    assert read_recipe(text, "train.yaml").workload.unit == "images"
    assert notes[-1].startswith("throughput: images a second")


def test_a_trial_that_fails_shows_its_last_line(folder):
    file = write(folder, "import nosuchmodule")
    _, notes = recipe_of_script(file, run_trial(file, 60))
    assert any("the trial ended with status 1: ModuleNotFoundError" in note for note in notes)
    with pytest.raises(RecipeError, match="there is no script"):
        recipe_of_script(folder / "other.py", Trial())


@pytest.mark.parametrize(
    ("source", "key", "count"),
    [
        ("import torch", "elastic: {}", 1),
        ("from dlcloud.trainer import train", "elastic: {}", 0),
        ("from trainer.training import train", "elastic: {}", 0),
        ("import torch", "reported: yes", 1),
        ("import dlcloud_report", "reported: yes", 0),
    ],
)
def test_a_script_without_the_import_of_its_recipe_is_warned_of(folder, source, key, count):
    write(folder, source)
    head = "name: x\ninstances: {types: c7i.xlarge}\nworkload:\n  command: python3 train.py\n  files: .\n"
    recipe = read_recipe(f"{head}  {key}\n", "x.yaml")
    events = []
    warn_of_script(recipe.workload, folder, events.append)
    assert len(events) == count
