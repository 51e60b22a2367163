"""An account of AWS's Free plan with a new account's quotas: what `doctor`, the plan and `up` say of it."""

import pytest

GPUS = """
name: gpus
cloud: local
instances: {types: [g5.2xlarge, g4dn.xlarge, p4d.24xlarge], market: spot-then-on-demand}
workload: {command: 'true', repeats: 1}
"""
CPU = """
name: cpu
cloud: local
instances: {types: [TYPES], market: on-demand}
workload: {command: 'true', repeats: 1}
"""
UPGRADE = "aws freetier upgrade-account-plan --region us-east-1 --account-plan-type PAID"


@pytest.fixture
def beginner(newcomer):
    """A user whose account was opened a moment ago: the Free plan, 5 vCPUs, none with GPUs."""
    newcomer.run("local", "start")
    newcomer.run("local", "account-plan", "free")
    for market in ((), ("--spot",)):
        newcomer.run("local", "quota", "c7i.large", "5", *market)
        newcomer.run("local", "quota", "g5.xlarge", "0", *market)
        newcomer.run("local", "quota", "p4d.24xlarge", "0", *market)
    (newcomer.home / "gpus.yaml").write_text(GPUS)
    return newcomer


def words(text):
    """Return a text without the breaks of lines."""
    return " ".join(text.split())


def test_doctor_says_what_is_first_the_least_quota_and_a_type_of_today(beginner):
    asked = beginner.run("doctor", "gpus.yaml", "--cloud", "local", expect=3)
    message = words(asked.stderr)
    first, then, today = (
        message.index(UPGRADE),
        message.index("--quota-code L-3819A6DF --desired-value 4"),
        message.index("today m7i-flex.large"),
    )
    assert first < then < today, "the upgrade first: no quota of the Free plan starts a GPU"
    assert message.count("request-service-quota-increase") == 1, "one, of the smallest type"
    assert "dlcloud up gpus.yaml --type m7i-flex.large" in message
    result = beginner.json("doctor", "gpus.yaml", "--cloud", "local", expect=3)["result"]
    checks = {row["check"]: row for row in result["records"]}
    assert checks["account plan"]["verdict"] == "REFUSED"
    assert "g5.2xlarge, g4dn.xlarge, p4d.24xlarge" in checks["account plan"]["detail"]
    assert result["remedy"] in message


def test_what_doctor_names_starts_and_what_the_plan_refuses_does_not(beginner):
    beginner.run("up", "gpus.yaml", "--type", "m7i-flex.large", "--yes")
    refused = words(beginner.run("up", "gpus.yaml", "--yes", expect=3).stderr)
    assert "an account of AWS's Free plan may not launch it" in refused
    assert UPGRADE in refused
    assert not beginner.alive()


@pytest.mark.long
def test_with_the_paid_plan_the_quota_alone_is_in_the_way(beginner):
    beginner.run("local", "account-plan", "paid")
    message = words(beginner.run("doctor", "gpus.yaml", "--cloud", "local", expect=3).stderr)
    assert UPGRADE not in message
    assert "--desired-value 4" in message
    assert "would start: dlcloud up gpus.yaml --type" in message
    name = message.rpartition("--type ")[2].split()[0]
    beginner.run("up", "gpus.yaml", "--type", name, "--yes")


@pytest.mark.long
def test_where_the_plan_is_not_known_the_refused_launch_says_what_to_do(beginner):
    """Policies of earlier versions do not allow the question; EC2's dry run does not see the Free plan."""
    (beginner.home / "one.yaml").write_text(CPU.replace("TYPES", "c7i.large"))
    (beginner.home / "two.yaml").write_text(CPU.replace("TYPES", "c7i.large, t3.small"))
    beginner.control.add_fault("GetAccountPlanState", "AccessDeniedException", status=403)
    refused = words(beginner.run("up", "one.yaml", "--yes", expect=3).stderr)
    assert "is not eligible for Free Tier" in refused
    assert UPGRADE in refused
    assert not beginner.alive()
    beginner.run("up", "two.yaml", "--yes")


def test_a_bare_type_is_answered_with_the_command_of_a_bundled_recipe(beginner):
    message = words(beginner.run("doctor", "g5.xlarge", "--cloud", "local", expect=3).stderr)
    assert "dlcloud up quickstart --cloud aws --type m7i-flex.large" in message
