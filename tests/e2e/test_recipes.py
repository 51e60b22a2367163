"""Every bundled recipe: it parses, it can be planned, and in its tiny form it runs on the local EC2.

Environments that take minutes to install are tried with DLCLOUD_TEST_RECIPES=all only.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from functools import partial

import pytest
from terminal import TIMEOUT_S, User, wait_until

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.elastic.agents import program_of as training_of
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text
from dlcloud.runs.program import program_of
from tests.needs import needs

CHEAP = {"quickstart", "quantization-int8"}
ALL = os.environ.get("DLCLOUD_TEST_RECIPES") == "all"


def recipe(name):
    return read_recipe(recipe_text(name)[0], name)


MEASURED = [name for name in recipe_names() if recipe(name).workload.elastic is None]
IN_TINY_FORM = [
    pytest.param(name, marks=[pytest.mark.long] if name == "quantization-int8" else [])
    for name in MEASURED
    if recipe(name).workload.nodes is None
]


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_has_its_file_name_and_its_program_takes_parameters(name, request):
    read = recipe(name)
    assert read.name == name
    folder = request.config.rootpath / "recipes"
    of = program_of if name in MEASURED else partial(training_of, run="")
    assert of(read, folder).requirements
    assert read.budget.max_hours <= 8, "an instance must not be left up by a recipe of ours"


@pytest.mark.parametrize("name", MEASURED)
def test_every_type_of_a_recipe_can_be_planned(user: User, name):
    types = recipe(name).instances.types
    planned = user.json("bench", "--recipe", name, "--cloud", "local", "--dry-run")["result"]["records"]
    assert [plan["instance_type"] for plan in planned] == types
    refused = {plan["instance_type"]: plan["refused"] for plan in planned if plan["refused"]}
    # The articles' own types may be retired since; one at least is left.
    assert all("retired" in reason for reason in refused.values()), refused
    assert len(refused) < len(types)


@pytest.mark.parametrize("name", IN_TINY_FORM)
def test_a_recipe_runs_in_its_tiny_form(user: User, name):
    read = recipe(name)
    if name not in CHEAP and not ALL:
        pytest.skip("its environment is heavy: DLCLOUD_TEST_RECIPES=all")
    if "https://github.com" in recipe_text(name)[0] and not _reachable("github.com"):
        pytest.skip("it clones from github.com, which cannot be reached from here")
    benchmark = BENCHMARKS.get(read.workload.benchmark or "")
    tiny = ("--tiny",) if benchmark and benchmark.tiny else ()
    types = ("-i", read.instances.types[-1])
    rows = user.json("bench", "--recipe", name, "--cloud", "local", *types, *tiny)["result"]["records"]
    assert rows
    assert all(row["rehearsal"] for row in rows)
    assert user.alive() == []


@pytest.mark.timeout(1200)  # it builds an environment of 941 MB, unless there is one
@pytest.mark.skipif(not ALL, reason="three minutes: DLCLOUD_TEST_RECIPES=all")
def test_the_elastic_recipe_loses_no_step(user: User):
    output, progress = user.begin("up", "dynamic-training", "--output", "json").communicate(timeout=1100)
    assert output, progress
    (training,) = json.loads(output)["result"]["records"]
    steps = [record["step"] for record in _records(user, "step", "dynamic-training")]
    assert sorted(set(steps)) == list(range(1, training["steps"] + 1))
    assert user.alive() == []


def _reachable(host):
    with suppress(OSError), socket.create_connection((host, 443), timeout=5):
        return True
    return False


@pytest.mark.long
def test_an_interrupted_sweep_resumes_on_a_new_instance(user: User):
    path = user.home / "sweep.yaml"
    path.write_text(
        "name: sweep\ncloud: local\ninstances: {types: [c7i.xlarge]}\nworkload:\n  benchmark: quantization\n"
        "  parameters: {network: tiny, engine: onnxruntime, batch: [1, 2, 4], max-seconds: 1,\n"
        "    slice-seconds: 0.05, warm-up-seconds: 0.5}\n"
    )
    process = user.begin("up", str(path))
    wait_until(lambda: _cases(user))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    (first,) = {host for _, host in _cases(user)}
    done = [case for case, _ in _cases(user)]
    assert user.alive() == []
    output = user.run("up", str(path)).stderr
    assert f"{len(done)} case(s) were measured before an interruption" in output
    cases = _cases(user)[len(done) :]
    assert [case for case, _ in cases] == ["tiny batch 1", "tiny batch 2", "tiny batch 4"]
    assert [host == first for _, host in cases] == [case in done for case in (case for case, _ in cases)]
    assert all(f"tiny batch {size}" in user.run("cost-report").stdout for size in (1, 2, 4))


def _cases(user: User) -> list[tuple[str, str]]:
    """Return the finished cases of the sweep, with the instances that they ran on, in order."""
    return [(case["case"], case["host"]) for case in _records(user, "case", "sweep")]


def _records(user: User, kind: str, cluster: str) -> list[dict]:
    """Return the stored records of a kind, of the clusters with names that begin so, in order."""
    rows = user.store(
        "SELECT line FROM records JOIN runs USING (run_id)"
        " WHERE kind = ? AND cluster_name LIKE ? || '%' ORDER BY started_at, position",
        kind,
        cluster,
    )
    return [json.loads(line) for (line,) in rows]


@pytest.mark.timeout(1200)  # environments of up to 1.5 GB, and Java
@pytest.mark.skipif(not ALL, reason="DLCLOUD_TEST_RECIPES=all")
@pytest.mark.parametrize("name", [name for name in recipe_names() if recipe(name).workload.nodes])
def test_a_recipe_over_nodes_is_rehearsed(user, name):
    """As it stands: its engine is the real one."""
    rows = user.json("up", name, "--cloud", "local")["result"]["records"]
    assert {row["nodes"] for row in rows} == {recipe(name).instances.maximum}
    assert all(row["throughput"] > 0 for row in rows)
    assert user.alive() == []


SMALL = {
    "cloud: aws": "cloud: local",
    "[c5.18xlarge, c7i.16xlarge, c7a.16xlarge]": "[c7i.xlarge]",
    "engine: [openvino, bigdl]": "engine: [bigdl]",
    "network: [vgg16, vgg19, digits]": "network: [tiny]",
    "max-seconds: 300": "max-seconds: 3",
}


@pytest.mark.timeout(1000)  # it installs 423 MB and starts four Java machines
@pytest.mark.skipif(not ALL, reason="DLCLOUD_TEST_RECIPES=all")
@needs("java")
def test_the_recipe_for_bigdl_runs_small_on_the_local_cloud(user):
    text = recipe_text("quantization-bigdl")[0]
    for of_aws, of_here in SMALL.items():
        assert of_aws in text
        text = text.replace(of_aws, of_here)
    path = user.home / "bigdl.yaml"
    path.write_text(text)
    out, err = user.begin("up", str(path), "--yes", "--output", "json").communicate(timeout=900)
    assert out, err
    rows = json.loads(out)["result"]["records"]
    assert {row["setting"] for row in rows} == {"bigdl fp32", "bigdl int8"}
    assert user.alive() == []
