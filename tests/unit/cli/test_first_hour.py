"""A newcomer's first hour: what was in the way of the first decisions."""

import shlex

import pytest

from dlcloud.runs.matrix import matrix_of_benchmarks


def test_a_misspelt_region_is_answered_with_the_nearest(dlcloud, home):
    for words in (
        ("up", "quickstart", "--region", "us-esat-1"),
        ("image", "--list", "--region", "us-esat-1"),
    ):
        refused = dlcloud(*words)
        assert refused.status == 2
        assert "there is no region us-esat-1" in refused.stderr
        assert "did you mean us-east-1" in refused.stderr
    assert not (home / "local" / "state.json").exists()


@pytest.mark.parametrize("target", [(), ("quickstart",), ("c7i.xlarge",)])
def test_doctor_asks_aws_unless_it_is_told_otherwise(dlcloud, target):
    done = dlcloud("doctor", *target)
    assert (done.status, done.stdout.splitlines()[0].startswith("AWS, us-east-1: would ")) == (3, True)
    assert "not checked: there are no credentials" in done.stdout
    verdict, hint = done.stderr.splitlines()[-2:]
    assert verdict.startswith(
        f"error: {(*target, 'quickstart')[0]} would not start: checking the credentials"
    )
    assert hint.startswith("hint: aws configure")


def test_selftest_asks_aws_unless_it_is_told_otherwise(dlcloud):
    done = dlcloud("selftest")
    first, *_, verdict, hint = done.stderr.splitlines()
    assert (done.status, first[:29]) == (3, "self-test of AWS, us-east-1: ")
    assert verdict.startswith("error: the self-test of AWS, us-east-1 was not started: ")
    assert hint == "hint: dlcloud doctor --cloud aws"


@pytest.mark.parametrize("named", [("-i", "c7i.xlarge"), ("-b", "language"), ("mixed-precision",)])
def test_bench_without_an_account_offers_what_works_as_pasted(dlcloud, named):
    done = dlcloud("bench", *named, "-i", "c5.18xlarge")
    assert done.status == 3
    assert done.stderr.count("there are no AWS credentials") == 1
    hint = done.stderr.splitlines()[-1].removeprefix("hint: ")
    assert " # about " in hint
    assert "in full about " in hint
    assert "no account is needed" in hint
    command = shlex.split(hint, comments=True)[1:]
    assert command[:1] + command[-3:] == ["bench", "--cloud", "local", "--tiny"]
    offered = dlcloud(*command, "--max-hours", "nonsense")
    assert "nonsense" in offered.stderr.splitlines()[-1], "every other word of it is understood"


def test_bench_runs_the_language_models_only_if_they_are_named():
    for names, runs in (((), False), (("language",), True)):
        matrix = matrix_of_benchmarks(["c7i.xlarge"], names, {"cloud": "local"}, tiny=False)
        assert ("language" in {job.name for job in matrix.jobs}) is runs
