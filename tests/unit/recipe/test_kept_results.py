"""Which of the files that a run wrote are downloaded."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.kept_results import GIB, Written
from dlcloud.recipe.recipe import read_recipe

RECIPE = "name: a\ncloud: local\ninstances: {types: [c5.large]}\nworkload: "
SIZES = [
    ("best.pt", 5),
    ("out/5.ckpt", 7),
    ("out/deep/x", 1),
    ("metrics [1].json", 2),
    ("runs/events.out.tfevents.1", 3),
]
ALL = sorted(name for name, _ in SIZES)


def files(sizes):
    return [Written(name=name, size=size) for name, size in sizes]


WRITTEN = files(SIZES)


def kept(keep="", workload="{command: python train.py}"):
    return read_recipe(f"{RECIPE}{workload}\n{keep}", "r.yaml").kept_files


def names(keep):
    return set(kept(keep).select(WRITTEN).sizes) - {"runs/events.out.tfevents.1"}


def test_by_default_all_that_a_command_wrote_is_downloaded():
    selection = kept().select(WRITTEN)
    assert list(selection.sizes) == ALL
    assert (selection.too_large, selection.unmatched) == ({}, ())
    assert "__pycache__" in kept().skipped_folders


@pytest.mark.parametrize(
    ("files", "selected"),
    [
        ("out", {"out/5.ckpt", "out/deep/x"}),
        ("./out", {"out/5.ckpt", "out/deep/x"}),
        ("out//*.ckpt", {"out/5.ckpt"}),
        ("out/*", {"out/5.ckpt", "out/deep/x"}),
        ("out/*.ckpt", {"out/5.ckpt"}),
        ("'**/x'", {"out/deep/x"}),
        ("'metrics [1].json'", {"metrics [1].json"}),
        ("'*.pt'", {"best.pt"}),
        ("ou", set()),
    ],
)
def test_a_folder_means_its_content_and_a_name_itself(files, selected):
    assert names(f"keep: {{files: [{files}]}}") == selected


@pytest.mark.parametrize(
    "pattern", ["/tmp/x.pt", "~/models/*.pt", "$HOME/x", "../x", "a/../../x", "out/", "", "/"]
)
def test_a_pattern_that_can_match_nothing_is_refused(pattern):
    with pytest.raises(RecipeError, match=r"r\.yaml:5: keep\.files"):
        kept(f"keep: {{files: ['{pattern}']}}")


def test_beyond_the_limit_the_largest_files_stay_and_their_folders_are_named():
    written = [("ckpt/a", 3 * GIB), ("ckpt/b", 2 * GIB), ("model.pt", GIB), ("log/x", 10), ("top", 3 * GIB)]
    written = [*files(written), Written(name="last", size=3 * GIB, other="ckpt/a")]
    written.append(Written(name="best", size=GIB, other="model.pt"))
    selection = kept().select(written)
    assert list(selection.sizes) == ["best", "log/x", "model.pt"]
    assert selection.largest_folders == [("ckpt/", 5 * GIB), ("top", 3 * GIB), ("last", 3 * GIB)]
    assert kept("keep: {files: ['**']}").select(written).too_large == {}


def test_a_default_leaves_the_digest_of_stored_recipes_as_it_was():
    text = f"{RECIPE}{{command: x}}\n"
    assert read_recipe(text, "r").values()["keep"]["files"] == []
    assert read_recipe(text, "r").hash != read_recipe(text + "keep: {files: none}", "r").hash
