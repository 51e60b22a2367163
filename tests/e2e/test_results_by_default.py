"""What a run wrote comes home by default, also of a run that failed; what does not fit is not lost."""

import textwrap

import pytest

TRAIN = """\
import os, pathlib, sys
folder = pathlib.Path("out/checkpoint-5")
folder.mkdir(parents=True)
(folder / "model.bin").write_text("weights")
os.symlink("checkpoint-5", "out/last")
pathlib.Path("__pycache__").mkdir()
pathlib.Path("__pycache__/x.pyc").write_text("cache")
sys.exit(int(sys.argv[1]))
"""
RECIPE = """\
name: own
cloud: local
instances: {{types: [c7i.large]}}
workload: {{command: python3 train.py {status}, files: train.py, repeats: 1}}
budget: {{max_hours: 1}}
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def write(status=0, more=""):
        path = tmp_path / "own.yaml"
        path.write_text(RECIPE.format(status=status) + textwrap.dedent(more))
        return str(path)

    return write


def downloaded(user):
    """Return the files of the newest run, relative to their folder."""
    runs = user.home / ".dlcloud" / "runs"
    folder = max(runs.glob("own-*"), key=lambda path: path.stat().st_mtime) / "files"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("status", [0, 3])
def test_what_a_command_wrote_is_downloaded_though_it_fails(user, script, status):
    done = user.run("up", script(status), expect=4 if status else 0)
    assert "2 file(s) downloaded to" in done.stderr
    assert downloaded(user) == ["out/checkpoint-5/model.bin", "out/last/model.bin"]
    assert user.alive() == []


def test_results_beyond_the_limit_stay_on_the_instance_for_an_hour(user, script):
    done = user.run("up", script(more="keep: {max_gib: 1e-9}"), expect=5)
    assert "out/checkpoint-5/" in done.stderr
    assert "is kept up for 60 minutes" in done.stderr
    assert len(user.alive()) == 1
    user.run("down")
    assert user.alive() == []
