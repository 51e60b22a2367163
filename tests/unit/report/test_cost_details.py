"""Estimate beside bill, and a clear word where there is no bill."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from dlcloud.analysis.cost import BilledCost, reconcile
from dlcloud.model.cluster import Member
from dlcloud.report.cost_tables import billed_records, billed_section
from dlcloud.report.table import Format, Report, render
from tests.fakes.samples import THEN, cluster, instance

HOUR = THEN + timedelta(hours=1)


def member(**other):
    values = {"instance": instance(), "hourly_usd": Decimal("0.5"), "price_source": "", "price_as_of": None}
    return Member(**{**values, "ended_at": HOUR, **other})


def lines(billed, *members, **other):
    return reconcile([cluster(**other)], {"c0ffee": members or [member()]}, billed, HOUR)


def shown(clusters, unanswered=""):
    section = billed_section(clusters, unanswered)
    return " ".join(
        render(Report(command="", records=[], sections=[section], empty=""), Format.TABLE).split()
    )


def test_the_bill_stands_beside_the_estimate():
    reconciled = lines({"c0ffee": BilledCost(usd=Decimal("0.52"), estimated=True)})
    assert "sample-1a2b us-east-1 0.510 0.520 ~ +0.00952" in shown(reconciled)
    assert "has not closed the month" in shown(reconciled)
    (record,) = billed_records(reconciled, "")["clusters"]
    assert record["difference_usd"] == Decimal("0.009521")


def test_where_nothing_is_billed_yet_it_says_what_to_do():
    assert "activate it once as a cost allocation tag" in shown(lines({}))


def test_where_aws_does_not_answer_it_says_why():
    text = shown(lines({}), "AWS's side is not known: denied")
    assert "AWS's side is not known: denied" in text
    assert "cost allocation tag" not in text


def test_what_was_rehearsed_is_not_billed():
    assert lines({}, cloud="local") == []


def test_it_keeps_within_80_columns():
    long = replace(lines({})[0], cluster=cluster("a-cluster-of-a-name-that-is-very-long-1a2b3c4d5e6f"))
    section = billed_section([long], "")
    text = render(Report(command="", records=[], sections=[section], empty=""), Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
