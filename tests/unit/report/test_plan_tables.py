"""One description, every format; the plan of an up, and of a bench."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from dlcloud.analysis.bench import rehearsal_s
from dlcloud.model.instance import Market
from dlcloud.planning.fit import Fit, LeftOut
from dlcloud.planning.plan import make_plan
from dlcloud.planning.quotas import Quota
from dlcloud.recipe.workload import Workload
from dlcloud.report.bench_tables import TypePlan, shared_needs
from dlcloud.report.bench_tables import plan_report as bench_plan_report
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, Report, envelope, render
from dlcloud.runs.matrix import matrix_of_benchmarks, matrix_of_recipe
from tests.fakes.samples import RECIPE, observed, plan, price, recipe

AT = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)


def report(*records, sections=(), **extra):
    return Report(command="test", records=records, sections=sections, empty="nothing", extra=extra)


def test_csv_has_every_key_of_any_record_once_and_else_empty_cells():
    text = render(
        report({"a": 1, "b": None}, {"b": True, "c": Decimal("0.10")}, {"a": AT, "c": 'x,"y"\nz'}), Format.CSV
    )
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b", "c"],
        ["1", "", ""],
        ["", "true", "0.10"],
        ["2026-09-01T12:00:00+00:00", "", 'x,"y"\nz'],
    ]


def test_json_is_a_versioned_envelope_with_exact_money():
    document = json.loads(
        render(report({"usd": Decimal("0.10"), "at": AT, "none": None, "yes": True}, more=[1]), Format.JSON)
    )
    assert document == {
        "schema": 1,
        "command": "test",
        "result": {
            "records": [{"usd": "0.10", "at": "2026-09-01T12:00:00+00:00", "none": None, "yes": True}],
            "more": [1],
        },
    }
    assert json.loads(envelope("up", {"error": {"message": "é"}}))["error"]["message"] == "é"


def shown(made, form=Format.TABLE):
    return render(plan_report(made), form)


def test_a_plan_shows_its_pools_its_money_and_its_reasons():
    text = shown(plan())
    lines = text.splitlines()
    assert lines[0] == "plan of sample on aws"
    first = next(line for line in lines if line.lstrip().startswith("1 "))
    assert " ".join(first.split()) == "1 c7i.xlarge on-demand any 0.1785 2026-07-20, bundled table"
    flat = " ".join(text.split())
    for words in (
        "2 instances: quantization",
        "SSH from 203.0.113.7/32 only; account 123456789012, us-east-1",
        "0.3570 USD/h at most; worst case 1.51 USD",
        "after 240 minutes",
        "(included: gp3 at 0.08 USD per GiB and month, a public address at 0.005 USD/h)",
        "terminated when the workload has ended",
    ):
        assert words in flat
    assert max(map(len, lines)) <= 80


def test_a_plan_that_is_a_rehearsal_says_so_in_every_format():
    rehearsal = plan("cloud: local\n" + RECIPE)
    for form in (Format.TABLE, Format.MARKDOWN):
        assert "nothing is billed" in shown(rehearsal, form)
    assert {record["rehearsal"] for record in csv.DictReader(io.StringIO(shown(rehearsal, Format.CSV)))} == {
        "true"
    }
    document = json.loads(shown(rehearsal, Format.JSON))["result"]
    assert document["plan"]["rehearsal"]
    assert all(record["rehearsal"] for record in document["records"])
    assert "rehears" not in shown(plan())


def test_spot_pools_are_one_try_of_which_ec2_chooses():
    spot = [price(name, market=Market.SPOT) for name in ("c7i.xlarge", "c6i.xlarge")]
    text = shown(
        plan(
            RECIPE.replace("  count: 2", "  count: 2\n  market: spot-then-on-demand"),
            *spot,
            price(),
            price("c6i.xlarge"),
        )
    )
    rows = [line.split()[:3] for line in text.splitlines() if "i.xlarge" in line]
    assert [(number, market) for number, _, market in rows] == [
        ("1", "spot"),
        ("1", "spot"),
        ("2", "on-demand"),
        ("3", "on-demand"),
    ]
    assert "of the spot types EC2 chooses, by price and capacity" in text


def test_a_plan_of_unknown_price_says_so():
    made = make_plan(recipe(), observed(price()))
    text = shown(made)
    assert "cost unknown; instances terminate themselves after 240 minutes" in " ".join(text.split())
    assert "unknown" in next(line for line in text.splitlines() if "c6i.xlarge" in line)
    whole = json.loads(shown(made, Format.JSON))["result"]
    assert whole["plan"]["worst_case_usd"] is None
    assert whole["plan"]["reasons"]
    assert [record["hourly_usd"] for record in whole["records"]] == ["0.1785", None]


def matrix_of(*types, tiny=False):
    return matrix_of_benchmarks(types, [], {"cloud": "local"}, tiny=tiny)


def test_the_tiny_forms_take_minutes_together():
    assert sum(rehearsal_s(job) for job in matrix_of("c5.18xlarge", tiny=True).jobs) == 170


def test_a_command_takes_as_long_as_it_takes():
    own = recipe().model_copy(update={"cloud": "local", "workload": Workload(command="true")})
    (job,) = matrix_of_recipe(["c7i.xlarge"], own, {}).jobs
    assert rehearsal_s(job) is None


def test_the_plan_of_a_rehearsal_says_how_long_it_takes():
    matrix = matrix_of("c5.18xlarge", "c7i.xlarge")
    names = tuple(job.name for job in matrix.jobs)
    without = LeftOut(benchmark=names[0], setting="bf16", reason="it has no AMX")
    fit = Fit(benchmarks=names, left_out=(without,), advice=())
    made = plan(f"{RECIPE}cloud: local\n")
    planned = [
        TypePlan(instance_type=name, fit=fit, waiting=waiting, plan=made)
        for name, waiting in (("c5.18xlarge", names), ("c7i.xlarge", names[:1]))
    ]
    text = " ".join(render(bench_plan_report(planned, matrix), Format.TABLE).split())
    assert (
        "about 58 min on two cores, environments apart: quantization 15 min, mixed_precision 10 min, "
        "tensorflow 33 min" in text
    )
    assert "on AWS; a rehearsal measures what this machine's CPU can compute, these too" in text


QUOTA = Quota(family="Standard", market=Market.ON_DEMAND, code="L-1216C47A", limit=96, used=0)
TWO = (("c5.18xlarge", 72, "us-east-1"), ("c7i.16xlarge", 64, "us-west-2"))


def planned(name, vcpus, region, *elsewhere):
    """A type whose language model waits for these vCPUs of each region's quota."""
    plans = [
        replace(plan(), region=one, quota_needs={QUOTA.code: (QUOTA, vcpus)}) for one in (region, *elsewhere)
    ]
    fit = Fit(benchmarks=("language",), left_out=(), advice=())
    return TypePlan(
        instance_type=name, fit=fit, waiting=fit.benchmarks, plan=plans[0], elsewhere=tuple(plans[1:])
    )


def test_types_that_do_not_fit_the_quota_together_are_said_to_wait_with_the_increase():
    matrix = matrix_of("c5.18xlarge", "c7i.16xlarge")
    types = [planned(name, vcpus, "us-east-1") for name, vcpus, _ in TWO]
    text = render(bench_plan_report(types, matrix), Format.MARKDOWN)
    assert "types wait for each other: together they take 136 vCPUs" in text
    assert "--desired-value 136" in text
    assert "wait for each other" not in render(bench_plan_report(types[:1], matrix), Format.MARKDOWN)


def test_each_region_has_its_own_quota():
    """Two types in two regions never wait for each other, and a failover finds the quota of its region."""
    first, second = (planned(*one, "eu-west-1") for one in TWO)
    needs = shared_needs([first, second])
    assert {place: vcpus for place, (_, vcpus) in needs.items()} == {
        ("us-east-1", QUOTA.code): 72,
        ("us-west-2", QUOTA.code): 64,
        ("eu-west-1", QUOTA.code): 0,
    }
    text = render(
        bench_plan_report([first, second], matrix_of("c5.18xlarge", "c7i.16xlarge")), Format.MARKDOWN
    )
    assert "wait for each other" not in text
