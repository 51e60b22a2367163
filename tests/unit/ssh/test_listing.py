"""Which files are sent: as git would, less what no instance can use, and nothing absurd."""

import os
import subprocess
from pathlib import Path

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe import sent_files
from dlcloud.ssh import listing
from dlcloud.ssh.listing import list_files
from tests.needs import needs


def write(root, names, text="x"):
    for name in names.split():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent(root):
    return {entry.name for entry in list_files(root).entries if entry.stamp.startswith("f")}


def git(root, *words):
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *names, *words], cwd=root, check=True, capture_output=True)


def sent_by_git(root):
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=root, check=True, capture_output=True)
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


@needs("git")
def test_ignore_files_are_read_as_git_reads_them(tmp_path):
    root = tmp_path
    names = "train.py data/a.bin data/keep.txt data/deep/keep.txt logs/1.log logs/x/2.log out/m.pt a/out/m.pt"
    more = "docs/x.md docs/y.md tracked.log t/u.log"
    write(
        root,
        f"{names} a/b/c.tmp a/b/d.tmp a/secret.txt 'odd' #x.txt !y.txt {more}",
    )
    (root / ".gitignore").write_text("*.log\n/out/\ndata/*\n!data/keep.txt\n**/b/*.tmp\n\\#x.txt\n\\!y.txt\n")
    (root / "a" / ".gitignore").write_text("!b/d.tmp\nsecret.txt\n")
    (root / "docs" / ".gitignore").write_text("*\n!x.md\n")
    git(root, "init")
    git(root, "add", "--force", "tracked.log", "t/u.log", "docs/y.md")
    assert sent(root) == sent_by_git(root)
    assert {"tracked.log", "t/u.log", "docs/y.md", "a/b/d.tmp", "a/out/m.pt"} <= sent(root)
    assert not {"logs/1.log", "a/secret.txt", "data/deep/keep.txt"} & sent(root)


@needs("git")
def test_a_folder_of_a_repository_is_subject_to_the_rules_above_it(tmp_path):
    root = tmp_path / "repository"
    write(root, "src/train.py src/out/a.pt src/sub/out/b.pt other.txt")
    git(root.parent / "repository", "init")
    (root / ".gitignore").write_text("/src/out/\n*.pt\n!b.pt\n")
    (tmp_path / ".gitignore").write_text("*.py\n")
    assert sent(root / "src") == sent_by_git(root / "src") == {"train.py", "sub/out/b.pt"}


def test_without_git_and_repository_the_files_are_read_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    write(tmp_path, "train.py data/a.bin .gitignore", "/data/\n")
    assert sent(tmp_path) == {"train.py", ".gitignore"}
    assert list_files(tmp_path).left_out == ("data/",)


def test_dlcloudignore_decides_first_and_brings_back(tmp_path):
    root = tmp_path / "project"
    write(root, "train.py model.pt notes.md sub/model.pt sub/notes.md")
    (root / ".gitignore").write_text("*.pt\n")
    (root / ".dlcloudignore").write_text("!/model.pt\n*.md\n")
    (root / "sub" / ".dlcloudignore").write_text("!notes.md\n")
    shown = {name for name in sent(root) if "ignore" not in name}
    assert shown == {"train.py", "model.pt", "sub/notes.md"}
    (tmp_path / ".dlcloudignore").write_text("train.py\n")
    assert "train.py" not in sent(root)


def test_what_no_instance_can_use_always_stays(tmp_path):
    write(tmp_path, "train.py .git/HEAD a/.git/HEAD __pycache__/x.pyc a/__pycache__/y.pyc")
    write(tmp_path, "venv/pyvenv.cfg venv/lib/x.py env/conda-meta/history a/b/.venv/pyvenv.cfg")
    (tmp_path / "venv" / "python").symlink_to("/usr/bin/python3")
    os.mkfifo(tmp_path / "pipe")
    files = list_files(tmp_path)
    assert {entry.name for entry in files.entries} == {"train.py", "a", "a/b"}
    assert files.left_out == ("a/b/.venv/", "env/", "venv/")


def test_a_link_that_is_left_out_may_lead_anywhere(tmp_path):
    write(tmp_path, "train.py")
    (tmp_path / "data").symlink_to("/")
    with pytest.raises(RecipeError, match="leads out"):
        list_files(tmp_path)
    (tmp_path / ".dlcloudignore").write_text("/data\n")
    assert sent(tmp_path) == {"train.py", ".dlcloudignore"}


@pytest.mark.parametrize("pattern", ["!", "a\\"])
def test_a_pattern_that_cannot_be_read_is_at_fault_or_nothing(tmp_path, pattern):
    write(tmp_path, "train.py")
    (tmp_path / ".dlcloudignore").write_text(f"{pattern}\n")
    try:
        assert "train.py" in sent(tmp_path)
    except RecipeError as refused:
        assert ".dlcloudignore" in refused.message  # noqa: PT017  either will do


@pytest.mark.parametrize("place", ["/", "HOME", "HOME/.."])
def test_places_that_are_no_program_are_refused_at_once(tmp_path, monkeypatch, place):
    home = tmp_path / "people" / "someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(RecipeError, match="nothing was sent"):
        list_files(Path(place.replace("HOME", str(home))))


def test_a_virtual_environment_is_refused_by_name(tmp_path):
    write(tmp_path, "pyvenv.cfg")
    with pytest.raises(RecipeError, match="is a virtual environment"):
        list_files(tmp_path)


def test_too_much_is_refused_with_the_largest_folders(tmp_path, monkeypatch):
    write(tmp_path, "train.py data/images/a.bin data/images/b.bin runs/1/x.bin", "x" * 1000)
    (tmp_path / "data" / "images" / "a.bin").write_text("x" * 50_000)
    monkeypatch.setattr(sent_files, "MOST_BYTES", 10_000)
    with pytest.raises(RecipeError) as refused:
        list_files(tmp_path).check()
    assert "largest: data/images/ 49.8 KiB in 2 files; runs/1/ 1000 B in 1 file" in refused.value.message
    hint = refused.value.hint
    assert hint == f"printf '%s\\n' '/data/images/' '/runs/1/' >> '{tmp_path}/.dlcloudignore' leaves them out"
    subprocess.run(hint.removesuffix(" leaves them out"), shell=True, check=True)
    assert sent(tmp_path) == {"train.py", ".dlcloudignore"}
    list_files(tmp_path).check()


def test_too_many_files_are_refused_without_listing_all(tmp_path, monkeypatch):
    write(tmp_path, " ".join(f"many/{folder}/{number}" for folder in range(9) for number in range(9)))
    monkeypatch.setattr(sent_files, "MOST_FILES", 10)
    monkeypatch.setattr(listing, "MOST_LISTED", 40)
    files = list_files(tmp_path)
    assert len(files.entries) < 60
    with pytest.raises(RecipeError, match=r"more than .* files, at least"):
        files.check()


def test_the_plan_says_how_much_is_sent_and_what_is_not(tmp_path):
    write(tmp_path, "train.py b.log c.log d.log e.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    text = list_files(tmp_path).describe()
    assert text == f"sends 2 files, 7 B, of {tmp_path}; left out: b.log, c.log, d.log and 1 more"
