"""`setup.requirements` names a file of packages beside the recipe."""

import pytest

from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe
from dlcloud.recipe.requirements_file import include_requirements

RECIPE = """\
name: good
setup:
  requirements: {value} # as everywhere
instances:
  types: [c7i.xlarge]
workload:
  command: python3 train.py
"""
FILE = """\
# the packages
numpy==2.4.6
torch == 2.13.0  # CPU

scipy[all]==1.16.3 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
"""
PINS = ["numpy==2.4.6", "torch==2.13.0", "scipy[all]==1.16.3"]


@pytest.mark.parametrize("value", ["requirements.txt", "[requirements.txt]", '"requirements.txt"'])
def test_the_packages_of_a_file_take_the_place_of_its_name(value, tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "requirements.txt").write_text(FILE)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.format(value=value))
    file = read_recipe_file(str(recipe))
    assert file.recipe.setup.requirements == PINS
    assert read_recipe(file.text, "stored").setup.requirements == PINS


@pytest.mark.parametrize(
    "value", ["requirements.txt", "\n    - requirements.txt", "|\n    requirements.txt\n "]
)
def test_later_lines_keep_their_numbers(value):
    text = RECIPE.format(value=value)
    included = include_requirements(text, "r.yaml", lambda _: FILE)
    assert included.splitlines().index("instances:") == text.splitlines().index("instances:")
    assert read_recipe(included, "r.yaml").setup.requirements == PINS


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("numpy==1\n\nscipy\n", "list.txt:3: 'scipy' is not pinned; write name==version"),
        ("-r other.txt", "list.txt:1: '-r other.txt' is an option of pip; list the packages"),
        ('a==1; python_version < "3"', "has a condition; list what the instance is to have"),
        ("a @ file:///wheels/a.whl", "is not pinned"),
        (None, "r.yaml:3: setup.requirements: there is no file list.txt beside the recipe"),
    ],
)
def test_faults_of_a_file_have_its_lines(content, fault):
    with pytest.raises(RecipeError) as caught:
        include_requirements(RECIPE.format(value="list.txt"), "r.yaml", lambda _: content)
    assert fault in caught.value.message


@pytest.mark.parametrize("text", ["", "[1]", "setup: 3", "setup: {requirements: [a==1]}", "a: [", "setup:"])
def test_other_recipes_stay_as_they_are(text):
    assert include_requirements(text, "r.yaml", lambda _: FILE) == text
