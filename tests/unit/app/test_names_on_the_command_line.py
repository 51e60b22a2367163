"""Names on the command line: a script in place of a recipe, and the beginning of a cluster's name."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from dlcloud.app.clusters import logs
from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.model.errors import RecipeError
from tests.fakes.samples import THEN, run


def test_a_script_in_place_of_a_recipe_names_init(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text("import torch")
    with pytest.raises(RecipeError, match="is a script, not a recipe") as raised:
        read_recipe_file(str(script))
    assert f"dlcloud init {script}" in raised.value.hint


def test_logs_of_the_beginning_of_a_name_are_those_of_the_newest_cluster(tmp_path):
    clusters = [SimpleNamespace(name=f"train-{end}", cluster_id=end) for end in ("aa", "bb")]
    runs = [
        run(
            f"train-{end}-1",
            cluster_id=end,
            cluster_name=f"train-{end}",
            started_at=THEN + timedelta(days=day),
        )
        for day, end in enumerate(("aa", "bb"))
    ]
    context = SimpleNamespace(
        clusters=SimpleNamespace(all=lambda: clusters, active=list),
        runs=SimpleNamespace(own=lambda: runs),
        paths=SimpleNamespace(run_log=lambda _: tmp_path),
    )
    assert logs._find(context, "train").run_id == "train-bb-1"
    with pytest.raises(RecipeError, match="no run other"):
        logs._find(context, "other")
