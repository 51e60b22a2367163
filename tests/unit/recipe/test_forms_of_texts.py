"""Messages of values that have another form say so in words."""

import re

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe


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
    assert "instances.types[0]: must be an instance type, as c7i.xlarge, or" in caught.value.message
    assert not re.search(r"\[a-z\]|\^", caught.value.message)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tags: {'': x}", "a tag has a key of 1 to 128"),
        ("permissions_boundary: x", "permissions_boundary: must be a policy's ARN (it is 'x')"),
        ("checkpoints: x", "checkpoints: 'x' is not s3://BUCKET/PREFIX"),
        ("setup: {image: '-x'}", "setup.image: must be the name of a container image, as python:3.12"),
        ("network: {vpc: x}", "network.vpc: must be vpc-… or tag:KEY=VALUE (it is 'x')"),
        ("data: [{from: s3://bucket/x, to: /abs}]", "data[0].to: must be a path below the job's folder"),
        ('region: "us-east-1\n"', "region: must be a region, as us-east-1"),
    ],
)
def test_each_value_says_what_it_must_be(lines, message):
    with pytest.raises(RecipeError) as caught:
        read_recipe(
            f"name: a\n{lines}\ninstances: {{types: c7i.large}}\nworkload: {{command: x}}\n", "r.yaml"
        )
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('description: "([0-9.]+) im/s"', "unknown key"),
        ('tags: {a: "\\.x"}', "in single quotes, a backslash is a backslash"),
        ("results: s3://my_bucket/p", "lower-case letters, digits, dots and hyphens, not as 'my_bucket'"),
        ("results: s3://b/p", "a bucket's name has at least 3 characters, 'b' has fewer"),
        ("budget: {max_hours: soon}", "budget.max_hours: input should be a valid number"),
    ],
)
def test_a_message_says_what_to_write_instead(lines, message):
    with pytest.raises(RecipeError) as caught:
        read_recipe(
            f"name: a\n{lines}\ninstances: {{types: c7i.large}}\nworkload: {{command: x}}\n", "r.yaml"
        )
    assert message in caught.value.message
