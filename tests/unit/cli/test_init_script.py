"""`dlcloud init train.py`: what it sees, what it sends, and the trial of ten seconds."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import pytest

from dlcloud.app.clusters.workload import refuse_missing_script, warn_of_script
from dlcloud.app.init import ScriptTrial, program_of, recipe_of_program, run_trial
from dlcloud.app.packages import warn_of_requirements
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe


def recipe_of_script(file, trial):
    return recipe_of_program(program_of(file), trial)


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
    assert 'files: "train.py"' in recipe_of_script(alone, ScriptTrial())[0]
    write(folder, "x = 1", "model.py")
    assert 'files: "."' in recipe_of_script(write(folder, "import model"), ScriptTrial())[0]
    write(folder, "1", "data.csv")
    assert 'files: "."' in recipe_of_script(write(folder, 'open("data.csv")', "other.py"), ScriptTrial())[0]


def test_what_a_trial_has_written_is_not_sent(folder):
    write(folder, "x", "model.npy")
    file = write(folder, "import json\nsave('model.npy')\nsave = open('model.npy', 'wb')", "save.py")
    assert 'files: "save.py"' in recipe_of_script(file, ScriptTrial())[0]
    file = write(folder, "save('model.npy')\nopen('data.csv')", "both.py")
    write(folder, "1", "data.csv")
    assert 'files: "."' in recipe_of_script(file, ScriptTrial())[0]


def test_versions_come_from_requirements_or_from_what_is_installed(folder):
    file = write(folder, "import yaml, nosuchpackage")
    text, notes = recipe_of_script(file, ScriptTrial())
    assert "pyyaml==" in text
    assert "# - nosuchpackage==" in text
    assert "versions are missing of nosuchpackage: pin them in the recipe" in notes
    write(folder, "numpy==2.0.1  # why\n", "requirements.txt")
    text, notes = recipe_of_script(file, ScriptTrial())
    assert '  requirements: "requirements.txt"' in text, "one reader of it for init and up"
    assert "requirements.txt does not list nosuchpackage, pyyaml: only" in " ".join(notes)


def test_known_packages_that_are_not_installed_are_left_to_uv(folder, monkeypatch):
    monkeypatch.setattr("dlcloud.app.init._versions_in", lambda *_: {})
    text, notes = recipe_of_script(write(folder, "import torch, nosuchpackage"), ScriptTrial())
    assert read_recipe(text, "x").setup.requirements == ["torch"]
    assert "not installed here, pinned by uv before the launch: torch" in notes
    assert "versions are missing of nosuchpackage: pin them in the recipe" in notes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", '[project]\nname = "mine"\nversion = "1"\ndependencies = ["numpy>=2"]\n'),
        ("environment.yml", "dependencies:\n  - python=3.12\n  - pip:\n    - numpy==2.0.1\n"),
        ("requirements.txt", "numpy>=2; python_version>'3'\n-r more.txt\n"),
    ],
)
def test_the_file_that_lists_packages_is_named(folder, name, content):
    write(folder, content, name)
    write(folder, "six\n", "more.txt")
    text, notes = recipe_of_script(write(folder, "import numpy"), ScriptTrial())
    assert f'requirements: "{name}"' in text
    assert not [note for note in notes if "cannot be used" in note or "does not list" in note]


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
    trial = run_trial(program_of(file))
    assert (trial.ran, trial.status) == (True, None)
    text, notes = recipe_of_script(file, trial)
    assert read_recipe(text, "train.yaml").workload.unit == "images"
    assert notes[-1].startswith("throughput: images a second")


def test_a_trial_that_fails_shows_its_last_line(folder):
    file = write(folder, "import nosuchmodule")
    _, notes = recipe_of_script(file, run_trial(program_of(file)))
    assert any("ended with status 1: ModuleNotFoundError" in note for note in notes)
    assert any(f"the trial, with {folder.parent}/bin/python3" in note for note in notes)
    with pytest.raises(RecipeError, match="there is no script"):
        recipe_of_script(folder / "other.py", ScriptTrial())


def test_a_trial_leaves_nothing_behind_and_says_that_it_was_cut_off(folder):
    file = write(
        folder,
        """
        import os, pathlib, tempfile, time
        pathlib.Path("out").mkdir()
        pathlib.Path("out/model.pt").write_text("weights")
        open("log.txt", "a").write("again")
        tempfile.mkdtemp()
        print("epoch 1", flush=True)
        time.sleep(600)
        """,
    )
    write(folder, "before", "log.txt")
    trial = run_trial(program_of(file), seconds=0.3)
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "train.py"]
    assert (folder / "log.txt").read_text() == "before"
    notes = recipe_of_script(file, trial)[1]
    assert any(re.match(r"the trial was cut off after \d+ s; its last line: epoch 1", note) for note in notes)


def test_a_folder_that_is_too_large_is_not_tried(folder):
    file = write(folder, "open('data.bin')")
    with (folder / "data.bin").open("wb") as data:
        data.truncate((1 << 30) + 1)
    trial = run_trial(program_of(file))
    assert not trial.ran
    assert "it was not tried: workload.files" in " ".join(recipe_of_script(file, trial)[1])


def test_results_of_earlier_runs_that_would_be_sent_are_named(folder):
    write(folder, "x = 1", "model.py")
    (folder / "out dir").mkdir()
    write(folder / "out dir", "w" * 3000, "weights.bin")
    file = write(folder, "import model\nTrainingArguments(output_dir='out')\nsave('out')")
    assert not [note for note in recipe_of_script(file, ScriptTrial())[1] if "is sent" in note]
    (folder / "out dir").rename(folder / "out")
    (note,) = (note for note in recipe_of_script(file, ScriptTrial())[1] if "is sent" in note)
    assert note.startswith("out (2.9 KiB), which the program writes, is sent; to leave it out: printf")
    subprocess.run(["sh", "-c", note.partition("leave it out: ")[2]], check=True)
    assert not [note for note in recipe_of_script(file, ScriptTrial())[1] if "is sent" in note]


def test_folders_without_init_are_the_users_own_and_are_sent(folder):
    for name in ("utils", "models/sub", "lib/inner"):
        (folder / name).mkdir(parents=True)
    write(folder / "utils", "import yaml", "data.py")
    write(folder / "models/sub", "from . import other", "net.py")
    write(folder / "models/sub", "import nosuchpackage", "other.py")
    write(folder / "lib", "", "shared.py")
    file = write(
        folder,
        """
        import sys
        sys.path.insert(0, "lib")
        import shared
        from utils.data import load
        from models.sub.net import Net
        """,
    )
    text, notes = recipe_of_script(file, ScriptTrial())
    assert read_recipe(text, "x").workload.files == "."
    assert "versions are missing of nosuchpackage: pin them in the recipe" in notes
    assert "pyyaml==" in text, "what own modules import is installed, too"


def test_a_folder_named_as_a_framework_hides_no_framework(folder, monkeypatch):
    (folder / "torch").mkdir()
    file = write(folder / "torch", "import torch\nfrom torch import nn")
    monkeypatch.chdir(folder)
    program = program_of(file.relative_to(folder))
    assert (program.command, str(program.target)) == ("python3 train.py", "torch/train.yaml")
    _, notes = recipe_of_program(program, ScriptTrial())
    assert any("torch" in note for note in notes if note.startswith(("packages", "not installed")))


def test_a_src_layout_is_found_by_pythonpath(folder):
    (folder / "src" / "mine").mkdir(parents=True)
    write(folder / "src" / "mine", "", "__init__.py")
    workload = read_recipe(recipe_of_script(write(folder, "import mine"), ScriptTrial())[0], "x").workload
    assert (workload.files, workload.environment) == (".", {"PYTHONPATH": "src"})


KINDS = {
    "shell": ("run.sh", "python3 train.py --bf16 | tee log", "bash run.sh"),
    "dash": ("-dash.py", "print('12 images/s')", "python3 ./-dash.py"),
    "blanks": ("my train.py", "print('12 images/s')", "python3 'my train.py'"),
    "makefile": ("Makefile", "all:\n\ttrue\ntrain:\n\tpython3 train.py\n", "make -f Makefile train"),
    "variables": (
        "Makefile",
        "PYTHON ?= python3\nDIR := .\nSCRIPT = $(DIR)/train.py\ntrain:\n\t${PYTHON} $(SCRIPT)\n",
        "make -f Makefile train",
    ),
    "shebang": ("go", "#!/bin/sh\npython3 train.py\n", "bash go"),
    "python without ending": ("prog", "#!/usr/bin/env python3\nprint('12 images/s')\n", "python3 prog"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_other_kinds_have_recipes(folder, kind):
    name, text, command = KINDS[kind]
    write(folder, "print('12 images/s')", "train.py")
    (folder / name).write_text(text)
    program = program_of(folder / name)
    assert program.command == command
    trial = run_trial(program)
    assert trial.lines[-1] == "12 images/s", "the command runs as it is written"
    text, _ = recipe_of_program(program, trial)
    recipe = read_recipe(text, "x.yaml")
    assert (recipe.workload.command, recipe.workload.unit) == (command, "images")
    assert program.sources or not program.shell
    assert recipe.instances.types[0].startswith("g" if "--bf16" in KINDS[kind][1] else "c")


def test_a_module_is_run_as_one(folder, monkeypatch):
    (folder / "pack" / "deep").mkdir(parents=True)
    for name in ("pack", "pack/deep"):
        write(folder / name, "", "__init__.py")
    write(folder / "pack", "x = 12", "data.py")
    file = write(folder / "pack" / "deep", "from ..data import x\nprint(x, 'images/s')")
    program = program_of(file)
    assert (program.command, program.target) == ("python3 -m pack.deep.train", folder / "train.yaml")
    assert run_trial(program).lines == ("12 images/s",)
    monkeypatch.chdir(folder)
    assert (
        program_of(Path(), "pack.deep.train", ["--lr", "1 2"]).command
        == "python3 -m pack.deep.train --lr '1 2'"
    )
    write(folder / "pack", "print('12 images/s')", "__main__.py")
    assert program_of(Path("pack")).command == "python3 -m pack"
    with pytest.raises(RecipeError, match="there is no module 'other'"):
        program_of(Path(), "other")


def test_a_script_that_names_files_of_this_folder_runs_here(folder, monkeypatch):
    (folder / "scripts").mkdir()
    (folder / "data").mkdir()
    write(folder / "data", "1", "x.csv")
    file = write(folder / "scripts", "print(open('data/x.csv').read(), 'images/s')")
    monkeypatch.chdir(folder)
    program = program_of(file.relative_to(folder))
    assert (program.command, str(program.target)) == ("python3 scripts/train.py", "train.yaml")
    assert run_trial(program).lines == ("1 images/s",)


def test_a_notebook_is_run_by_ipython(folder):
    cells = [
        {"cell_type": "markdown", "source": ["# text"]},
        {
            "cell_type": "code",
            "source": ["%matplotlib inline\n", "!pip install -q nosuchpackage==1.0\n", "import yaml\n"],
        },
        {"cell_type": "code", "source": "print(f'{1 + 1} images/s')"},
    ]
    file = write(
        folder, json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}), "a b.ipynb"
    )
    text, _ = recipe_of_script(file, ScriptTrial())
    recipe = read_recipe(text, "x")
    assert recipe.workload.command == "ipython --colors=NoColor 'a b.ipynb'"
    assert (recipe.workload.files, recipe.workload.unit, recipe.name) == ("a b.ipynb", "images", "a-b")
    assert "nosuchpackage==1.0" in recipe.setup.requirements
    assert any(requirement.startswith("pyyaml==") for requirement in recipe.setup.requirements)
    with pytest.raises(RecipeError, match="is no notebook"):
        program_of(write(folder, "not json", "c.ipynb"))


def test_what_is_installed_from_a_folder_is_not_pinned(folder, monkeypatch):
    info = folder / "site" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "mine.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///home/me/mine", "dir_info": {"editable": true}}')
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"))
    (folder / "work").mkdir()
    text, notes = recipe_of_script(write(folder / "work", "import mine"), ScriptTrial())
    assert "mine==" not in text
    assert (
        "mine is installed here from file:///home/me/mine, not from an index: it is not in the recipe"
        in notes
    )


@pytest.mark.parametrize("name", ["run.sh", "Makefile", "a b.py", "x.ipynb"])
def test_the_hint_of_up_leads_to_a_recipe(dlcloud, home, name):
    (home.parent / name).write_text('{"cells": []}' if name.endswith("b") else "true:\n")
    done = dlcloud("up", name)
    assert (done.status, "is a script, not a recipe" in done.stderr) == (2, True)
    command = re.search(r"hint: dlcloud (.*) writes its recipe", done.stderr)[1]
    (home.parent / name).write_text('{"cells": []}' if name.endswith("b") else "")
    done = dlcloud(*shlex.split(command))
    assert done.status == 0
    written = shlex.split(re.search(r"next: dlcloud plan (.*)", done.stdout)[1])[0]
    assert dlcloud("validate", written).status == 0


def test_a_script_that_does_not_exist_is_not_written_as_a_recipe(dlcloud, home):
    for name in ("new.ipynb", "new.sh", "new.py", "Makefile"):
        done = dlcloud("init", name)
        assert (done.status, f"there is no script {name}" in done.stderr) == (2, True)
        assert not (home.parent / name).exists()
    (home.parent / "notes.txt").write_text("x")
    assert "is no script that init knows" in dlcloud("init", "notes.txt").stderr


def recipe_for(command="python3 train.py", files="train.py", setup="", more=""):
    head = f"name: x\ninstances: {{types: c7i.xlarge}}\n{setup}workload:\n  command: {json.dumps(command)}\n"
    return read_recipe(head + (f"  files: {files}\n" if files else "") + more, "x.yaml")


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
    events = []
    warn_of_script(recipe_for(more=f"  {key}\n").workload, folder, events.append)
    assert len(events) == count


@pytest.mark.parametrize(
    ("command", "files", "message"),
    [
        ("python3 nosuch.py", ".", "nosuch.py, which is not in workload.files"),
        ("python3 nosuch.py --lr 1", "train.py", "nosuch.py, which is not in workload.files"),
        ("python3 train.py", "", "no files are sent"),
        ("bash nosuch.sh", ".", "nosuch.sh, which is not in workload.files"),
        ("sh -e nosuch.sh 3", ".", "nosuch.sh, which is not in workload.files"),
        ("./nosuch", ".", "nosuch, which is not in workload.files"),
    ],
)
def test_a_script_that_is_not_sent_is_refused_before_the_launch(folder, command, files, message):
    write(folder, "pass")
    with pytest.raises(RecipeError, match=message):
        refuse_missing_script(recipe_for(command, files).workload, folder)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("python3 train.py --lr 1", "train.py"),
        ("python3 ./train.py", "."),
        ("python3 /opt/program.py", ""),
        ("git clone x && python3 x/main.py", "."),
        ("python3 made.py; true", "."),
        ("python3 -m package", ""),
        ("./configure && make", "."),
        ("bash -c 'echo 1'", ""),
        ("./train.py", "."),
    ],
)
def test_a_command_that_may_make_its_script_is_not_refused(folder, command, files):
    write(folder, "pass")
    refuse_missing_script(recipe_for(command, files).workload, folder)


PINS = "setup: {requirements: [numpy==2.4.6, Scikit_Learn==1.8.0, opencv-python==4.12, tensorflow==2.20]}\n"
EMPTY = "train.py imports numpy, and setup.requirements is empty: an instance has Python without packages"
MISSING = "train.py imports scipy, which setup.requirements does not list"


@pytest.mark.parametrize(
    ("source", "setup", "warning"),
    [
        ("import json, numpy", "", EMPTY),
        ("import json, numpy", "setup: {requirements: ['numpy==2.4.6']}\n", None),
        ("import json, numpy", "setup: {commands: pip install numpy}\n", None),
        ("import json, numpy", "setup: {image: python}\n", None),
        ("import cv2, sklearn, tensorflow", PINS, None),
        ("import numpy, scipy", PINS, MISSING),
    ],
)
def test_imports_that_no_requirement_names_are_warned_of(folder, source, setup, warning):
    write(folder, source)
    recipe, events = recipe_for(setup=setup), []
    warn_of_script(recipe.workload, folder, events.append, recipe.setup)
    messages = [event.message for event in events]
    assert len(messages) == (warning is not None)
    assert all(message.startswith(warning) for message in messages)
    assert warning != EMPTY or messages == [EMPTY]


def test_the_environment_of_dlcloud_is_read_where_the_shell_has_another(folder):
    python = folder.parent / "bin" / "python3"
    python.unlink()
    python.write_text('#!/bin/sh\necho "{}"\n')
    python.chmod(0o755)
    file = write(folder, "import yaml\nprint(yaml.__name__, '3 images/s')")
    assert "pyyaml==" in recipe_of_script(file, ScriptTrial())[0]
    assert run_trial(program_of(file)).lines == ("yaml 3 images/s",)


ANSWERS = {
    "numpy==99.9": "Because there is no version of numpy==99.9 and you require numpy==99.9, we can",
    "numpy==99.8": "ERROR: No matching distribution found for numpy==99.8",
    "numpy==1.0": "error: Failed to fetch: connection refused",
}


@pytest.mark.parametrize("requirement", ANSWERS)
def test_a_requirement_that_the_index_does_not_have_is_warned_of(folder, monkeypatch, requirement):
    tool = folder / "uv"
    tool.write_text(f"#!/bin/sh\necho '{ANSWERS[requirement]}' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    events = []
    warn_of_requirements([requirement], events.append)
    assert bool(events) is (requirement != "numpy==1.0")


class Index(BaseHTTPRequestHandler):
    """A package index of one package, that notes what is asked of it."""

    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path != "/heavy/":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = b'<a href="heavy-2.0-py3-none-any.whl">heavy</a>'
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is missing")
def test_pip_is_asked_for_versions_and_downloads_no_package(folder, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PATH", str(folder.parent / "bin"))
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/")
        events = []
        warn_of_requirements(["heavy==2.0", "heavy[all]==2.0", "heavy==3.0", "light==1.0"], events.append)
        server.shutdown()
    named = [event.message.partition(" is not")[0] for event in events]
    assert named == ["setup.requirements: heavy==3.0", "setup.requirements: light==1.0"]
    assert set(Index.asked) == {"/heavy/", "/light/"}
