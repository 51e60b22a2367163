"""The command that measures again what a bench has measured: a rehearsal is measured on AWS."""

from dlcloud.app.bench.run import command_again


def test_what_was_rehearsed_is_measured_on_aws_whatever_the_recipe_says():
    again = command_again([], "mine.yaml", region=None, market="spot", is_rehearsal=True)
    assert again == "dlcloud bench mine.yaml --cloud aws --market spot"


def test_what_was_measured_on_aws_is_measured_there_again():
    region = "eu-central-1"
    again = command_again(["quantization"], "", (1, 2), region=region, market=None, is_rehearsal=False)
    assert again == "dlcloud bench -b quantization --nodes 1,2 --region eu-central-1"
