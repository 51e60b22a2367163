"""`dlcloud budget`: no plan starts that could pass the limit, for all homes that share its bucket."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dlcloud.cloud.storage.buckets import S3Ledger


@pytest.fixture
def limited(user, tmp_path):
    """A user with a configuration file of this test's."""
    variables = {"DLCLOUD_CONFIG": str(tmp_path / "config.yaml")}
    return replace(user, variables={**user.variables, **variables})


def recipe(user, hours, name):
    path = user.home / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ncloud: local\ninstances: {{types: [c5.large]}}\nbudget: {{max_hours: {hours}}}\n"
        "workload: {command: 'echo done', repeats: 1}\n"
    )
    return str(path)


def test_a_plan_that_could_pass_the_limit_does_not_start(limited, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("# mine\ndefault: work\nprofiles:\n  work: {cloud: aws}\n")
    assert "no limit of a month is set" in limited.run("budget").stdout
    assert "no limit of a month is set" in limited.run("budget", "--rehearsals", expect=2).stderr
    assert "budget" not in config.read_text()
    assert "no amount" in limited.run("budget", "much", expect=2).stderr
    set_to = limited.json("budget", "1/month", "--rehearsals")["result"]["records"][0]
    assert set_to["limit_usd"] == "1"
    assert "# mine" in config.read_text()
    refused = limited.run("up", recipe(limited, 24, "long"), expect=3)
    assert "are left for" in refused.stderr
    assert limited.alive() == []
    limited.run("up", recipe(limited, 2, "short"))
    month = limited.json("budget")["result"]["records"][0]
    assert 0 < float(month["spent_usd"]) < 0.01
    assert float(month["committed_usd"]) == 0
    assert float(month["left_usd"]) == pytest.approx(1 - float(month["spent_usd"]))
    assert "no limit" in limited.run("budget", "none").stderr
    assert "budget" not in config.read_text()
    assert "profiles:" in config.read_text()


@pytest.mark.long
def test_the_limit_holds_wherever_instances_are_launched(limited):
    limited.run("budget", "0.15/month", "--rehearsals")
    long = recipe(limited, 24, "held")
    with Path(long).open("a") as file:
        file.write("setup: {commands: 'true'}\n")
    bench = ("--cloud", "local", "--max-hours", "24", "-i", "c5.large")
    for words in (("bench", *bench, "--recipe", long), ("up", long, "--detach"), ("image", long)):
        assert "are left for" in limited.run(*words, expect=3).stderr, words
    assert limited.alive() == []
    limited.run("budget", "1/month", "--rehearsals")
    limited.run("up", recipe(limited, 4, "grows"), "--keep", "--name", "grows")
    limited.run("budget", "0.5/month", "--rehearsals")
    assert "are left for" in limited.run("resize", "grows", "2", expect=3).stderr
    assert len(limited.alive()) == 1
    limited.run("down", "grows")


def test_the_limit_holds_for_everybody_who_names_the_bucket(limited, tmp_path):
    s3 = limited.client("s3")
    s3.create_bucket(Bucket="team-results")
    share = "s3://team-results/dlcloud"
    limited.run("budget", "0.5/month", "--shared", share, "--rehearsals")
    for _ in range(2):  # a cluster that goes on is not counted a second time
        limited.run("up", recipe(limited, 4, "kept"), "--keep", "--name", "of-one")
    other = replace(limited, variables={**limited.variables, "DLCLOUD_HOME": str(tmp_path / "other")})
    other.variables["DLCLOUD_CONFIG"] = str(tmp_path / "others.yaml")
    (tmp_path / "others.yaml").write_text(f"budget: {{shared: '{share}', rehearsals: true}}\n")
    endpoint = limited._endpoint()
    key, secret = endpoint.owner_key()
    other.variables["DLCLOUD_LOCAL_ENDPOINT"] = endpoint.url
    other.variables["DLCLOUD_LOCAL_ACCESS_KEY_ID"] = key
    other.variables["DLCLOUD_LOCAL_SECRET_ACCESS_KEY"] = secret
    refused = other.run("up", recipe(other, 4, "second"), expect=3)
    assert "of 0.500 are left" in refused.stderr
    limited.run("down", "--all")
    limited.run("budget")
    other.run("up", recipe(other, 4, "second"))


def test_thresholds_are_notified_of_once(limited, tmp_path):
    notes = tmp_path / "notes"
    (limited.home / ".dlcloud" / "notify").write_text(f'echo "$DLCLOUD_MESSAGE" >> {notes}\n')
    try:
        spent = float(limited.json("budget", "1/month", "--rehearsals")["result"]["records"][0]["spent_usd"])
        limit = f"{spent / 0.9:.6f}/month"
        assert "80 % of the budget" in limited.run("budget", limit).stderr
        assert "80 %" not in limited.run("budget").stderr
        assert notes.read_text().count("80 %") == 1
    finally:
        (limited.home / ".dlcloud" / "notify").unlink()


def test_changes_of_many_homes_at_once_all_count(user):
    s3 = user.client("s3")
    s3.create_bucket(Bucket="counted")

    class Clients:
        region = "us-east-1"

        def get(self, service, _region=None):
            assert service == "s3"
            return s3

    ledger = S3Ledger(Clients(), "s3://counted/x", "budget.json")

    def add():
        for _ in range(3):
            ledger.update(lambda document: {"count": document.get("count", 0) + 1})

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.read() == {"count": 12}
