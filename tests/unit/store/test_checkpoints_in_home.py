"""Checkpoints in the dlcloud home: only whole states count, and the one before the newest is kept."""

import hashlib
import json
from dataclasses import replace

import pytest

from dlcloud.model.errors import RemoteCommandError
from dlcloud.store.checkpoints import HomeCheckpoints, read_state
from dlcloud.store.home import Paths


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def state(number, *texts, changes=None):
    files = {
        f"ckpt/{place}": {"size": len(text), "sha256": digest(text), "mode": 0o644}
        for place, text in enumerate(texts)
    }
    made_at = "2026-11-27T00:00:00+00:00"
    content = {"schema": 1, "number": number, "made_at": made_at, "ended": False, "files": files, "links": {}}
    return read_state(json.dumps(content | (changes or {})), "i-1")


@pytest.fixture
def home(tmp_path):
    paths = Paths(tmp_path / "home")
    return HomeCheckpoints(paths.home / "checkpoints/one/0", paths)


def sending(*texts, cut=0):
    """Return what downloads contents, of which the last one lacks its end."""
    by_digest = {digest(text): text for text in texts}

    def fetch(sizes, target):
        for place, name in enumerate(sizes, 1):
            text = by_digest[name]
            (target / name).write_text(text[: len(text) - cut] if place == len(sizes) else text)

    return fetch


def test_the_newest_state_and_the_one_before_it_are_kept(home):
    for number, text in enumerate("abc", 1):
        home.add(state(number, text), sending(text))
    assert home.newest().number == 3
    assert {path.name for path in home.objects.iterdir()} == {digest("b"), digest("c")}


def test_a_state_from_which_a_program_could_not_start_stays_until_there_is_a_newer_one(home):
    for number, text in enumerate("abc", 1):
        home.add(state(number, text), sending(text))
    without = replace(home, refused={3})
    assert (without.newest().number, home.newest().number) == (2, 3)
    without.add(state(4, "d"), sending("d"))
    assert home.newest().number == 4
    assert {path.name for path in home.objects.iterdir()} == {digest("b"), digest("d")}


def test_a_content_that_is_cut_off_publishes_nothing(home):
    home.add(state(1, "first"), sending("first"))
    with pytest.raises(RemoteCommandError, match="changed while it was copied"):
        home.add(state(2, "second"), sending("second", cut=1))
    assert home.newest().number == 1


def test_a_command_that_is_killed_while_it_copies_leaves_the_state_before(home):
    home.add(state(1, "first"), sending("first"))

    def killed(sizes, target):
        sending("second", "third", cut=2)(sizes, target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        home.add(state(2, "second", "third"), killed)
    assert home.newest().number == 1
    home.add(state(2, "second", "third"), sending("second", "third"))
    assert home.newest().number == 2


def test_a_state_whose_content_was_lost_does_not_count(home):
    home.add(state(1, "first"), sending("first"))
    home.add(state(2, "second"), sending("second"))
    (home.objects / digest("second")).write_text("sec")
    assert home.newest().number == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"number": "one"},
        {"files": {"ckpt/a": {"size": 1, "sha256": "../../key"}}},
        {"files": {"ckpt/a": {"size": -1, "sha256": digest("a")}}},
        {"made_at": "yesterday"},
        {"files": []},
    ],
)
def test_a_manifest_that_is_none_is_refused(changes):
    with pytest.raises(RemoteCommandError, match="unexpected manifest"):
        state(1, "a", changes=changes)
