"""The command that measures again what a bench has measured: a rehearsal is measured on AWS."""

import pytest

from dlcloud.app.bench.run import command_again, recipe_keys


@pytest.mark.parametrize("cloud", [None, "local"])
def test_what_was_rehearsed_is_measured_on_aws_whatever_the_recipe_says(cloud):
    keys = recipe_keys(cloud, None, None, None, spot=True)
    again = command_again([], "mine.yaml", keys, is_rehearsal=True)
    assert again == "dlcloud bench --recipe mine.yaml --cloud aws --spot"


def test_what_was_measured_on_aws_is_measured_there_again():
    keys = recipe_keys(None, "eu-central-1", None, None, spot=False)
    again = command_again(["quantization"], "", keys, (1, 2), is_rehearsal=False)
    assert again == "dlcloud bench -b quantization --nodes 1,2 --region eu-central-1"
