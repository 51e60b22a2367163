import json

import pytest

from dlcloud.analysis.selftest import RECIPES, Observations, SelftestVerdict, judge, read_probe, recipe_text
from dlcloud.recipe.recipe import read_recipe


def verdicts(seen):
    return {finding.number: finding.verdict for finding in judge(seen)}


def probe(**changes):
    return {
        "python": "3.12.3",
        "machine": "x86_64",
        "watchdogs": 1,
        "root_gib": 7.6,
        "nologin": False,
        "timer": "active",
        "systemd": "systemd 255",
    } | changes


@pytest.mark.parametrize("cloud", ["aws", "local"])
@pytest.mark.parametrize("kind", sorted({kind for part in RECIPES.values() for kind in part}))
def test_its_recipes_are_valid_and_end_soon(cloud, kind):
    text = recipe_text(
        kind, cloud=cloud, region="eu-west-1", instance_type="t4g.micro", results="s3://bucket/folder"
    )
    recipe = read_recipe(text, "selftest")
    assert (recipe.cloud, recipe.region, recipe.budget.max_hours) == (cloud, "eu-west-1", 0.25)
    market = {"detach": "on-demand", "batch": "spot", "gpu": "spot"}.get(kind, kind)
    assert recipe.instances.market == market
    assert ("apt-get install" in str(recipe.setup.commands)) == (cloud == "aws" and market == kind)


def test_nothing_is_claimed_where_nothing_was_seen():
    assert set(verdicts(Observations()).values()) == {SelftestVerdict.NOT_SEEN}


def test_each_market_and_each_instance_count():
    member = {"instance_id": "i-1", "market": "spot", "host": "192.0.2.1"}
    seen = Observations(members=[member], probes=[probe()], left=[])
    held = {number for number, verdict in verdicts(seen).items() if verdict is SelftestVerdict.HELD}
    assert held == {"a1", "a2", "a6", "6", "7", "13", "17", "b2"}


def test_what_is_wrong_has_failed():
    seen = Observations(
        members=[{"instance_id": "i-1", "market": "spot", "host": ""}],
        probes=[probe(), probe(watchdogs=2, nologin=True, timer="inactive")],
        left=[{"id": "sg-1"}],
        checks={"default network": ("REFUSED", "no default subnet")},
        errors=["dlcloud up: ec2:CreateTags is denied"],
        role="arn:aws:sts::123456789012:assumed-role/x",
        controller_s=4.0,
        result="nothing",
        trials=[{"state": "done", "instance_type": "c5.large"}, {"state": "failed", "instance_type": None}],
        gpu={"driver": "", "computed": "failed: no CUDA", "data": "/", "is_store": False, "rehearsal": False},
    )
    failed = {number for number, verdict in verdicts(seen).items() if verdict is SelftestVerdict.FAILED}
    assert failed == {
        *("a5", "a6", "1", "6", "7", "14", "17", "b2"),
        *("d1", "d2", "d3", "e1", "e2", "e3"),
    }


def test_an_answer_to_the_probe_is_read_without_what_it_adds():
    assert read_probe(json.dumps(probe(more="x"))) == probe()
    assert read_probe(json.dumps(probe(python="3.12\x1b[2J")))["python"] == "3.12\ufffd[2J"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        "Traceback",
        json.dumps(probe(watchdogs="1")),
        json.dumps(probe(root_gib=float("nan"))),
        json.dumps(probe(python=None)),
    ],
)
def test_any_other_answer_to_the_probe_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read_probe(text)


def test_the_timer_and_the_ends_are_stated_as_they_were_seen():
    seen = Observations(probes=[probe()], down_s=[41.0, 63.2])
    evidence = {finding.number: finding.evidence for finding in judge(seen)}
    assert evidence["b2"] == "dlcloud-life.timer is active; systemd 255"
    assert evidence["b3"] == "terminated within 63 s"
    local = Observations(probes=[probe(timer="", systemd="")])
    assert verdicts(local)["b2"] is SelftestVerdict.NOT_SEEN
