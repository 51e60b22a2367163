"""Known answers of the pure parts: cost, tokens, tags, stages, and records as programs write them."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import usd_per_million
from dlcloud.analysis.result import comparison_of, parse_record, result_of
from dlcloud.model.cluster import client_token
from dlcloud.model.ebs_prices import volume_usd
from dlcloud.model.events import StageDone, StageStarted, stage
from dlcloud.model.instance import Hardware, InstanceState, boot_timeout_s, hardware_of
from dlcloud.model.money import billed_seconds, instance_usd, money, rounded
from tests.fakes.clock import FakeClock
from tests.fakes.samples import THEN, cluster, instance


@pytest.mark.parametrize(
    ("seconds", "billed"), [(0, 60), (59.9, 60), (60, 60), (60.001, 61), (3600, 3600), (-5, 60)]
)
def test_seconds_are_billed_from_a_minute_on_and_rounded_up(seconds, billed):
    assert billed_seconds(THEN, THEN + timedelta(seconds=seconds)) == billed


def test_known_costs():
    assert instance_usd(Decimal("0.1785"), 60) == Decimal("0.002975")
    assert rounded(volume_usd(50, 730 * 3600, region="us-east-1"), 6) == Decimal("4.000000")
    assert rounded(volume_usd(50, 730 * 3600, region="eu-central-1"), 6) == Decimal("4.760000")
    assert volume_usd(50, region="xx-new-1") >= max(volume_usd(50, region=name) for name in ("sa-east-1", ""))
    # 100 a second at 3.60 USD/h: a million take 10000 s, which cost 10 USD.
    assert usd_per_million(Decimal("3.60"), 100) == Decimal(10)
    assert usd_per_million(Decimal("3.60"), 0) is None
    assert rounded(Decimal("0.00005")) == Decimal("0.0001")
    assert rounded(Decimal("2.675"), 2) == Decimal("2.68")


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        ("0", "0"),
        ("0.001171", "0.00117"),
        ("0.0000000123", "0.0000000123"),
        ("0.5", "0.500"),
        ("0.9996", "1.00"),
        ("4.958333", "4.96"),
        ("99.96", "100"),
        ("198.333", "198"),
        ("12345.6", "12346"),
        ("-0.014521", "-0.0145"),
    ],
)
def test_money_has_three_significant_digits_and_whole_dollars(usd, shown):
    assert money(Decimal(usd)) == shown


def test_a_token_is_of_its_request_and_fits_ec2():
    token = client_token(cluster(), "c7i.xlarge", "", "spot", 2, 0)
    assert token == client_token(cluster(name="renamed"), "c7i.xlarge", "", "spot", 2, 0)
    assert len(token) == 64
    assert token.isascii()
    others = {
        client_token(cluster(cluster_id="c0ffed"), "c7i.xlarge", "", "spot", 2, 0),
        client_token(cluster(recipe_hash="00"), "c7i.xlarge", "", "spot", 2, 0),
        client_token(cluster(), "c7i.xlarge", "", "spot", 2, 1),
        client_token(cluster(), "c7i.xlarge", "", "spot", 20),
        client_token(cluster(), "c7i.xlarge", "", "spot", 1, 0),
    }
    assert len(others | {token}) == 6


def test_everything_of_a_cluster_is_tagged_with_it():
    assert cluster().tags == {
        "dlcloud:managed": "true",
        "dlcloud:cluster": "c0ffee",
        "Name": "dlcloud sample-1a2b",
    }


@pytest.mark.parametrize(
    ("seconds", "names"),
    [
        (1200, ["c5.metal", "m7i.metal-24xl", "g4dn.metal"]),
        (600, ["trn1.32xlarge", "trn2.48xlarge", "dl1.24xlarge", "inf2.48xlarge"]),
        (600, ["p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge"]),
        (300, ["t3.micro", "g6.xlarge", "p3.2xlarge", "c7i.large"]),
    ],
)
def test_the_time_to_boot_depends_on_the_type(seconds, names):
    assert {boot_timeout_s(name) for name in names} == {seconds}


def test_all_states_but_the_last_two_may_cost_money():
    dead = {state for state in InstanceState if not instance(state=state).alive}
    assert dead == {InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED}


def test_a_stage_reports_its_beginning_and_its_end_with_its_duration():
    clock, events = FakeClock(), []
    with stage(events.append, clock, "booting", instance_id="i-1"):
        clock.advance(2.5)
    assert events == [
        StageStarted(message="booting", instance_id="i-1"),
        StageDone(message="booting", instance_id="i-1", seconds=2.5),
    ]


def test_a_record_of_a_newer_program_is_read():
    line = (
        '{"schema": 9, "record": "result", "case": "a", "setting": "b", "metrics": {"throughput": '
        '{"value": 3, "unit": "images/s", "percentiles": []}}, "energy_j": 5}'
    )
    result = result_of(parse_record(line))
    metric = result.metrics["throughput"]
    assert (metric.value, metric.low, metric.high, metric.samples) == (3.0, None, None, 1)
    assert result.stable
    assert not result.baseline


def test_a_comparison_is_read_with_defaults():
    read = comparison_of({"ratio": 3, "low": "2.5", "high": 3.5})
    assert (read.ratio, read.low, read.high) == (3.0, 2.5, 3.5)
    assert (read.metric, read.verdict) == ("throughput", "")


def test_hardware_is_read_however_little_of_it_is_stated():
    assert hardware_of({}) == Hardware()
    assert hardware_of({"hardware": {"cpu_model": None, "gpus": []}}).label == "unknown CPU"
    assert hardware_of({"hardware": {"cpu_model": "Xeon", "physical_cores": 4}}).label == "Xeon, 4 cores"
    gpus = [{"name": "T4", "memory_mib": 15360}, {"name": "T4"}]
    assert hardware_of({"hardware": {"cpu_model": "Xeon", "gpus": gpus}}).label == "2x T4"


@pytest.mark.parametrize(
    "code", ["InternalError", "InvalidKMSKey.InvalidState", "InvalidKmsKey.InvalidState"]
)
def test_an_end_for_want_of_a_key_says_what_the_key_must_allow(code):
    ended = replace(instance(), state_reason=f"Client.{code}: The KMS key provided is in an incorrect state")
    for action in ("kms:CreateGrant", "kms:Decrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"):
        assert action in ended.end_hint
    assert replace(instance(), state_reason="Client.UserInitiatedShutdown").end_hint == ""
