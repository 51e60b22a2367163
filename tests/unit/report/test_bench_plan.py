"""The plan of a bench states how long a rehearsal takes before it starts."""

from dataclasses import replace

from dlcloud.analysis.bench import rehearsal_s
from dlcloud.model.instance import Market
from dlcloud.planning.fit import Fit, LeftOut
from dlcloud.planning.quotas import Quota
from dlcloud.recipe.workload import Workload
from dlcloud.report.bench_tables import TypePlan, plan_report, shared_needs
from dlcloud.report.table import Format, render
from dlcloud.runs.matrix import matrix_of_benchmarks, matrix_of_recipe
from tests.fakes.samples import RECIPE, plan, recipe


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
    text = " ".join(render(plan_report(planned, matrix), Format.TABLE).split())
    assert (
        "about 58 min on two cores, environments apart: quantization 15 min, mixed_precision 10 min, "
        "tensorflow 33 min" in text
    )
    assert "on AWS; a rehearsal measures what this machine's CPU can compute, these too" in text


def test_types_that_do_not_fit_the_quota_together_are_said_to_wait_with_the_increase():
    matrix = matrix_of("c5.18xlarge", "c7i.16xlarge")
    quota = Quota(family="Standard", market=Market.ON_DEMAND, code="L-1216C47A", limit=96, used=0)
    types = [
        TypePlan(
            instance_type=name,
            fit=Fit(benchmarks=("language",), left_out=(), advice=()),
            waiting=("language",),
            plan=replace(plan(), quota_needs={quota.code: (quota, vcpus)}),
        )
        for name, vcpus in (("c5.18xlarge", 72), ("c7i.16xlarge", 64))
    ]
    text = render(plan_report(types, matrix), Format.MARKDOWN)
    assert "types wait for each other: together they take 136 vCPUs" in text
    assert "--desired-value 136" in text
    assert "wait for each other" not in render(plan_report(types[:1], matrix), Format.MARKDOWN)


def test_each_region_has_its_own_quota():
    """Two types in two regions never wait for each other, and a failover finds the quota of its region."""
    quota = Quota(family="Standard", market=Market.ON_DEMAND, code="L-1216C47A", limit=96, used=0)
    first, second = (
        TypePlan(
            instance_type=name,
            fit=Fit(benchmarks=("language",), left_out=(), advice=()),
            waiting=("language",),
            plan=replace(plan(), region=region, quota_needs={quota.code: (quota, vcpus)}),
            elsewhere=(replace(plan(), region="eu-west-1", quota_needs={quota.code: (quota, vcpus)}),),
        )
        for name, vcpus, region in (("c5.18xlarge", 72, "us-east-1"), ("c7i.16xlarge", 64, "us-west-2"))
    )
    needs = shared_needs([first, second])
    assert {place: vcpus for place, (_, vcpus) in needs.items()} == {
        ("us-east-1", quota.code): 72,
        ("us-west-2", quota.code): 64,
        ("eu-west-1", quota.code): 0,
    }
    text = render(plan_report([first, second], matrix_of("c5.18xlarge", "c7i.16xlarge")), Format.MARKDOWN)
    assert "wait for each other" not in text
