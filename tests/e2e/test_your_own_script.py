"""`docs/your-own-script.md`, line by line: the script, the commands and the settings of the page."""

import re
import shlex
from pathlib import Path

from dlcloud.recipe.recipe import read_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-script.md").read_text("utf-8")


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_holds_line_by_line(newcomer):
    script, *others = blocks("python")
    folder = newcomer.home
    (folder / "train.py").write_text(script)
    printed = [newcomer.run(*shlex.split(line)[1:]) for block in blocks("sh") for line in block.splitlines()]
    recipe = (folder / "train.yaml").read_text()
    assert read_recipe(recipe, "train.yaml").workload.unit == "images"
    (settings,) = blocks("yaml")
    compared = recipe.replace("\nworkload:\n", f"\nworkload:\n{settings}", 1)
    assert [setting.name for setting in read_recipe(compared, "x").workload.settings] == ["small", "large"]
    assert "your job: 1.2M images" in printed[-1].stdout
    for other in others:
        compile(other, "other", "exec")
