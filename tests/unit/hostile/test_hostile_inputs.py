"""Recipes and command lines that no one means: an error with a message, no traceback, and nothing is created.

DLCLOUD_FUZZ sets the number of recipes and of command lines (default 150 and 60), DLCLOUD_FUZZ_SEED the seed.
"""

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from dlcloud.model.errors import DlcloudError, RecipeError
from dlcloud.recipe.document import DEEPEST, LONGEST_TEXT, MOST_EVENTS, parse
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.resources.texts import LARGEST_RECIPE, recipe_text
from tests.unit.hostile.command_lines import check, no_cloud, run
from tests.unit.hostile.input_texts import hostile_arguments, hostile_recipe

FUZZ = int(os.environ.get("DLCLOUD_FUZZ", "0"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))


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


@pytest.mark.timeout(7200)
def test_any_command_line_ends_with_a_message_and_creates_nothing(tmp_path, monkeypatch, record_property):
    counts, home = Counter(), tmp_path / "a/b/home"
    with no_cloud(monkeypatch, home) as folder:
        for number in range(FUZZ or 60):
            words = hostile_arguments(Random(SEED * 1_000_003 + number))
            ended = run(monkeypatch, words)
            counts[ended.status] += 1
            check(ended, folder, f"DLCLOUD_FUZZ_SEED={SEED}, line {number}: {words}")
    record_property("exits", dict(counts))
    clusters = home / "clusters"
    assert not clusters.exists() or not [*clusters.iterdir()]
    assert Path("/dev/null").is_char_device(), "a command has replaced it"


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
