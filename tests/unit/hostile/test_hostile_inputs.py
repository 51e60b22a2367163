"""Recipes and command lines that no one means: an error with a message, no traceback, and nothing is created.

DLCLOUD_FUZZ sets the number of recipes and of command lines (default 150 and 60), DLCLOUD_FUZZ_SEED the seed.
"""

import contextlib
import io
import os
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from dlcloud.cli import main as cli
from dlcloud.cli.context import Context
from dlcloud.core.document import DEEPEST, LONGEST_TEXT, MOST_EVENTS, parse
from dlcloud.core.errors import CredentialsError, DlcloudError, LocalCloudError, RecipeError
from dlcloud.core.recipe import Recipe, read_recipe
from dlcloud.local.site import LocalSite
from dlcloud.resources.texts import LARGEST_RECIPE, recipe_text

sys.path.insert(0, str(Path(__file__).parent))
from input_texts import hostile_arguments, hostile_recipe

FUZZ = int(os.environ.get("DLCLOUD_FUZZ", "0"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))
EXITS = {0, 1, 2, 3, 4, 5, 130}


@pytest.mark.timeout(7200)
def test_any_recipe_is_read_or_refused_with_its_line(record_property):
    counts, messages = Counter(), []
    for number in range(FUZZ or 150):
        text = hostile_recipe(Random(SEED * 1_000_003 + number))
        try:
            recipe = read_recipe(text, "r.yaml")
            counts["read"] += isinstance(recipe, Recipe)
        except RecipeError as error:
            counts["refused"] += 1
            messages.append(error.message)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, recipe {number}: {error!r}") from error
    assert counts["refused"]
    assert all(message.encode().startswith(b"r.yaml:") for message in messages), f"DLCLOUD_FUZZ_SEED={SEED}"
    record_property("recipes", dict(counts))


@pytest.fixture
def no_cloud(monkeypatch, tmp_path):
    """Let every command find no cloud, in a home and a folder of its own."""

    def refuse(*_):
        raise CredentialsError("there are no credentials", "aws configure")

    def not_started(*_, **__):
        raise LocalCloudError("not started in this test")

    monkeypatch.setattr(Context, "_clients", refuse)
    for name in ("start", "stop"):
        monkeypatch.setattr(LocalSite, name, not_started)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "a/b/home"))
    folder = tmp_path / "a/b/c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.timeout(7200)
def test_any_command_line_ends_with_a_message_and_creates_nothing(no_cloud, monkeypatch, record_property):
    counts = Counter()
    for number in range(FUZZ or 60):
        words = hostile_arguments(Random(SEED * 1_000_003 + number))
        out, err = Output(), Output()
        monkeypatch.setattr(sys, "argv", ["dlcloud", *words])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run()
        counts[status] += 1
        text = out.getvalue() + err.getvalue()
        where = f"DLCLOUD_FUZZ_SEED={SEED}, line {number}: {words}\n{text}"
        assert status in EXITS, where
        assert "Traceback" not in text, where
        assert status in {0, 130} or err.getvalue(), where
        assert not any(no_cloud.rglob("owned")), where
    record_property("exits", dict(counts))
    clusters = no_cloud.parent / "home/clusters"
    assert not clusters.exists() or not [*clusters.iterdir()]


class Output(io.StringIO):
    """Text with a buffer of bytes beside it, as standard streams have."""

    def __init__(self):
        super().__init__()
        self.buffer = io.BytesIO()

    def getvalue(self):
        return super().getvalue() + self.buffer.getvalue().decode("utf-8", "replace")


def run():
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 50_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("\n".join("  " * depth + "a:" for depth in range(200)), "nested too deeply"),
        ("[" + "a," * 100_000 + "]", "too many values"),
        ("a: &a [x]\nb: [*a, *a]\n", "aliases"),
        ("x" * (LONGEST_TEXT + 1), f"at most {LONGEST_TEXT}"),
    ],
)
def test_bombs_are_refused_before_they_cost_time(text, message):
    (fault,) = parse(text).faults
    assert message in fault.message


def test_the_limits_of_yaml_are_far_from_any_recipe():
    lines = "".join(f"    VARIABLE_{number}: 'value {number}'\n" for number in range(2000))
    text = f"{recipe_text('quickstart')[0]}\nnothing:\n  deep:\n{lines}"
    assert [fault.message for fault in parse(text).faults] == []
    assert MOST_EVENTS > 4000
    assert DEEPEST > 10


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a/" * 3000, "\x00", ""])
def test_a_name_that_no_file_can_have_is_no_recipe(name):
    with pytest.raises(RecipeError, match="neither a file nor"):
        recipe_text(name)


@pytest.mark.parametrize(
    "content", [b"a: b\n" * 2_100_000, b"\xff" * 100, b"\x00" * 100], ids=["10 MB", "ff", "0"]
)
def test_a_file_that_is_no_recipe_is_refused_at_once(tmp_path, content):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(DlcloudError) as caught:
        read_recipe(recipe_text(str(path))[0], str(path))
    assert len(caught.value.message) < 1000
    assert path.stat().st_size < LARGEST_RECIPE or "at most 1 MiB" in caught.value.message
