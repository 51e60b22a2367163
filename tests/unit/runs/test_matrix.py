"""A bench: the recipe of each type, when two matrices are the same, and how it ends."""

from dataclasses import replace

import pytest

from dlcloud.analysis.bench import TypeResult, done_before, fault_of, fits
from dlcloud.analysis.result import RunState
from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CapacityError, InstanceError, PartialError, QuotaError, RecipeError
from dlcloud.planning.fit import Machine
from dlcloud.runs.matrix import matrix_of_benchmarks, matrix_of_recipe
from tests.fakes.samples import RECIPE, recipe, run

TYPES = ("c5.18xlarge", "g4dn.xlarge")


def matrix(*benchmarks, tiny=False, **options):
    return matrix_of_benchmarks(TYPES, benchmarks, options, tiny=tiny)


def test_each_type_has_a_cluster_of_its_own_and_each_work_its_name():
    bench = matrix("quantization", instances={"market": "spot"}, cloud="local", budget={"max_hours": "2"})
    one = bench.recipe_of_type("g4dn.xlarge")
    assert (one.name, one.cloud, one.budget.max_hours) == ("bench-g4dn-xlarge", "local", 2.0)
    assert (one.instances.types, one.instances.count, one.instances.market) == (["g4dn.xlarge"], 1, "spot")
    recipe = bench.recipe_of_job("g4dn.xlarge", bench.jobs[0])
    assert recipe.name == "bench"
    assert recipe.workload.parameters == BENCHMARKS["quantization"].sweep


@pytest.mark.parametrize(
    ("benchmarks", "options", "message"),
    [
        (["nothing"], {}, "no such benchmark"),
        (["command"], {}, "no such benchmark"),
        ([], {"budget": {"max_hours": "soon"}}, "budget.max_hours"),
        ([], {"region": "Mars"}, "region"),
    ],
)
def test_bad_options_are_refused_in_words(benchmarks, options, message):
    with pytest.raises(RecipeError, match=message):
        matrix_of_benchmarks(TYPES, benchmarks, options, tiny=False)


def test_a_name_that_is_no_type_is_refused():
    with pytest.raises(RecipeError, match="instances"):
        matrix_of_benchmarks(["g4dn"], [], {}, tiny=False)


def test_a_recipe_brings_its_workload_and_keeps_what_no_option_names():
    own = recipe(RECIPE.replace("  count: 2\n", "  count: 2\n  disk_gib: 99\n  market: spot\n"))
    bench = matrix_of_recipe(TYPES, own, {"instances": {"market": None}, "budget": {"max_hours": "1"}})
    assert (bench.base.instances.disk_gib, bench.base.instances.market) == (99, "spot")
    assert bench.base.instances.maximum == 1
    assert bench.base.budget.max_hours == 1.0
    assert bench.jobs[0].workload == own.workload


def test_a_command_that_resumes_is_measured_from_the_beginning():
    kept = "command: python train.py\n  checkpoints: [out/]\n  resume: auto\n  on_notice: kill -USR1 1"
    own = recipe(
        f"name: r\ninstances: {{types: t3.micro}}\nworkload:\n  {kept}\ncheckpoints: s3://bucket/p\n"
    )
    bench = matrix_of_recipe(TYPES, own, {})
    workload = bench.jobs[0].workload
    assert (workload.checkpoints, workload.resume, workload.repeats) == ([], "none", 6)
    assert bench.base.checkpoints is None


def test_equal_matrices_have_equal_digests_and_others_have_others():
    assert matrix("quantization").digest == matrix("quantization").digest
    others = [matrix("quantization", tiny=True), matrix("quantization", cloud="local")]
    others += [replace(matrix("quantization"), recipe_path=f"/{name}/train.yaml") for name in ("a", "b")]
    assert len({matrix("quantization").digest, *(left.digest for left in others)}) == 5


def test_fit_is_judged_by_type_then_instance_and_unknown_types_do_all():
    jobs = matrix("quantization").jobs
    assert fits(jobs, None).benchmarks == ("quantization",)
    skylake = fits(jobs, Catalog().hardware("c5.18xlarge"))
    assert [left.setting for left in skylake.left_out] == ["bf16"]
    small = Machine(name="i-1", flags=frozenset(), memory_gib=1.0, gpus=0)
    assert fits(jobs, small).benchmarks == ()
    own = matrix_of_recipe(TYPES, recipe(), {}).jobs
    assert fits(own, small).left_out == fits(own, small).left_out


def test_only_runs_that_ended_well_are_done():
    runs = [run("a", state=RunState.DONE), run("b", state=RunState.LOST, workload="other")]
    name = runs[0].workload
    assert {job for _, job in done_before(runs)} == {name, f"{name} on 1 node"}


FULL = CapacityError("no capacity")
QUOTA = QuotaError("no quota", "ask for more")
DONE = TypeResult(instance_type="a", done=("x",))
NONE = TypeResult(instance_type="b", refused=FULL)
FAILED = TypeResult(instance_type="c", failed={"x": "status 1"})
HALF = TypeResult(instance_type="d", done=("x",), failed={"y": "status 1"})


@pytest.mark.parametrize(
    ("outcomes", "kind", "message"),
    [
        ([DONE, NONE], PartialError, "b was refused: no capacity"),
        ([DONE, FAILED], PartialError, "x failed on c: status 1"),
        ([HALF], PartialError, "y failed on d"),
        ([NONE, NONE], CapacityError, "no capacity"),
        ([TypeResult(instance_type="b", refused=QUOTA)], QuotaError, "no quota"),
        ([NONE, TypeResult(instance_type="b", refused=QUOTA)], CapacityError, "no quota"),
        ([FAILED, FAILED], InstanceError, "x failed on c"),
        ([FAILED, NONE], InstanceError, "b was refused"),
    ],
)
def test_a_bench_ends_with_what_is_missing(outcomes, kind, message):
    fault = fault_of(outcomes)
    assert type(fault) is kind
    assert message in fault.message


def test_a_bench_of_which_nothing_is_missing_ends_well():
    assert fault_of([DONE, TypeResult(instance_type="nothing fits")]) is None


NODES = """
name: job
instances: {types: [c7i.large], count: 3}
workload: {nodes: all, command: ./run, throughput: 'x ([0-9]+)'}
"""


def test_a_job_over_nodes_runs_on_the_largest_count_first():
    bench = matrix_of_recipe((), recipe(NODES), {}, nodes=[1, 4, 2, 4])
    assert [(job.name, job.nodes) for job in bench.jobs] == [
        ("job on 4 nodes", 4),
        ("job on 2 nodes", 2),
        ("job on 1 node", 1),
    ]
    assert bench.recipe_of_type("c7i.large").instances.maximum == 4
    assert bench.count_of({"job on 2 nodes", "job on 1 node"}) == 2
    assert matrix_of_recipe((), recipe(NODES), {}).jobs[0].nodes == 3


def test_a_count_that_was_measured_is_not_measured_again():
    done = done_before(
        [replace(run(), workload="job", instance_type="c7i.large", nodes=2, state=RunState.DONE)]
    )
    assert ("c7i.large", "job on 2 nodes") in done
    assert ("c7i.large", "job on 1 node") not in done


def test_nodes_of_a_workload_that_is_no_job_over_them_are_refused():
    with pytest.raises(RecipeError, match="does not run one job over several"):
        matrix_of_recipe((), recipe(NODES.replace("nodes: all, ", "")), {}, nodes=[1, 2])
