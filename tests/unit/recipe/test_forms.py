"""Messages of values that have another form say so in words."""

import json
import re

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.forms import FORMS, form_of
from dlcloud.recipe.profile import Configuration
from dlcloud.recipe.recipe import read_recipe, recipe_schema


def test_each_form_is_one_of_a_recipe_or_a_profile():
    text = json.dumps([recipe_schema(), Configuration.model_json_schema()])
    assert {pattern for pattern in FORMS if json.dumps(pattern)[1:-1] not in text} == set()


def test_a_pattern_without_words_is_shown():
    assert form_of("^x$") == "of the form ^x$"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "name: Bad Name",
            "name: must be lower-case letters, digits and hyphens, a letter first, 31 at most",
        ),
        ("name: a\nregion: Mars", "region: must be a region, as us-east-1 (it is 'Mars')"),
        ("name: a\nimports: x", "imports: unknown key"),
    ],
)
def test_no_message_shows_a_regular_expression(line, message):
    with pytest.raises(RecipeError) as caught:
        read_recipe(f"{line}\ninstances: {{types: [c7i]}}\nworkload: {{command: x}}\n", "r.yaml")
    assert message in caught.value.message
    assert "instances.types[0]: must be an instance type, as c7i.xlarge (it is 'c7i')" in caught.value.message
    assert not re.search(r"\[a-z\]|\^", caught.value.message)
