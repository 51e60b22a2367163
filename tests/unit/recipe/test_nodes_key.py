"""`workload.nodes: all`: where it belongs, and what a job over several nodes costs."""

import json
from decimal import Decimal

import pytest

from dlcloud.analysis.cost import RunCost, cost_of_nodes
from dlcloud.app.clusters.workload import refuse_unclear_nodes
from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import read_recipe

JOB = """
name: job
instances: {types: c5.large, count: 2}
workload: {nodes: all, command: torchrun train.py}
"""


def cost(usd: str | None, *, final: bool = True) -> RunCost:
    return RunCost(
        boot_s=1,
        setup_s=1,
        run_s=8,
        rest_s=0,
        instance_usd=None if usd is None else Decimal(usd),
        volume_usd=Decimal(1),
        final=final,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("command: torchrun train.py", "benchmark: quantization", "belongs to a command"),
        ("train.py", "train.py, elastic: {}", "belongs to a command that is not elastic"),
        ("nodes: all, command: torchrun train.py}", "command: a}\nkeep: {all_nodes: true}", "keep.all_nodes"),
    ],
)
def test_a_job_over_all_nodes_is_a_command_that_is_not_elastic(old, new, message):
    with pytest.raises(RecipeError, match=message):
        read_recipe(JOB.replace(old, new), "r.yaml")


def test_a_job_costs_what_its_nodes_cost_together():
    together = cost_of_nodes([cost("2"), cost("3", final=False)], 2)
    assert (together.instance_usd, together.volume_usd, together.final) == (5, 2, False)
    assert together.run_s == 8


def test_nodes_that_an_import_lacks_are_taken_to_cost_the_same():
    assert cost_of_nodes([cost("2")], 3).usd == 9
    assert cost_of_nodes([cost(None), cost("2")], 2).usd is None


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node gpu train.py",
        "OMP_NUM_THREADS=4 exec torchrun train.py --nnodes-of-mine 1",
        "export A=1\ntorchrun --nnodes 2 \\\n  train.py",
        "python3 -m torch.distributed.run train.py",
        "python -u -m torch.distributed.launch --nproc_per_node=8 train.py",
        "env NCCL_DEBUG=INFO timeout 1h /opt/env/bin/torchrun train.py | tee log",
        "bash -lc 'cd src && torchrun train.py'",
        "uv run torchrun train.py",
        "if true; then torchrun train.py --standalone; fi",
        "python3 -m benchmarks.distributed.mpirun --per-node 8 ./solver",
        "accelerate launch --num_machines 2 --machine_rank $NODE_RANK train.py",
        "deepspeed --hostfile $DLCLOUD_HOST_FILE --no_ssh --node_rank=$NODE_RANK train.py",
    ],
)
def test_a_launcher_that_knows_the_other_nodes_makes_one_job_of_several_instances(command):
    assert read_recipe(_with(command), "r.yaml").is_one_job
    assert not read_recipe(_with(command, nodes="each"), "r.yaml").is_one_job
    alone = _with(command).replace("count: 2", "count: 1")
    assert not read_recipe(alone, "r.yaml").is_one_job


@pytest.mark.parametrize(
    "command",
    [
        "python3 train.py --launcher torchrun",
        "echo torchrun train.py",
        "pip install deepspeed && python3 train.py  # mpirun",
        "torchrun --standalone --nproc-per-node 4 train.py",
        "torchrun --nnodes=1 train.py",
        "accelerate launch --num_machines 1 train.py",
        "accelerate launch --num-machines=1 train.py",
        "deepspeed --num_nodes=1 train.py",
        "horovodrun -np 4 -H localhost:4 python3 train.py",
        "python3 train.py -m torch.distributed.run",
        "accelerate test",
    ],
)
def test_a_command_that_says_so_or_starts_no_launcher_runs_on_each_instance(command):
    read = read_recipe(_with(command), "r.yaml")
    assert not read.is_one_job
    assert read.launcher is None or read.launcher.over_all is False


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("mpirun -np 4 ./solver", "mpirun"),
        ("mpiexec -n 4 python3 train.py", "mpirun"),
        ("accelerate launch train.py", "accelerate launch"),
        ("python3 -m accelerate.commands.launch train.py", "accelerate launch"),
        ("deepspeed train.py --deepspeed ds.json", "deepspeed"),
        ("horovodrun -np 4 python3 train.py", "horovodrun"),
        ("torchrun --standalone a.py; torchrun b.py", "torchrun"),
    ],
)
def test_a_launcher_that_may_mean_each_or_all_is_asked_for(command, name, tmp_path):
    asked = read_recipe(_with(command), str(tmp_path / "r.yaml"))
    with pytest.raises(RecipeError, match=f"starts {name} on 2 instances") as caught:
        refuse_unclear_nodes(asked, tmp_path)
    assert "workload.nodes: each" in caught.value.hint
    for nodes in ("each", "all"):
        refuse_unclear_nodes(read_recipe(_with(command, nodes=nodes), "r.yaml"), tmp_path)
    refuse_unclear_nodes(read_recipe(_with(command).replace("count: 2", "count: 1"), "r.yaml"), tmp_path)


def test_a_launcher_inside_of_a_script_is_asked_for(tmp_path):
    (tmp_path / "run.sh").write_text("set -e\ntorchrun train.py\n")
    text = _with("bash run.sh").replace("workload: {", "workload: {files: run.sh, ")
    with pytest.raises(RecipeError, match="starts torchrun on 2 instances"):
        refuse_unclear_nodes(read_recipe(text, "r.yaml"), tmp_path)


@pytest.mark.parametrize("command", ["make", "make train", "make -f Makefile train", "make all EPOCHS=3"])
def test_a_launcher_inside_of_a_makefile_is_asked_for(command, tmp_path):
    makefile = "RUN ?= torchrun --nproc-per-node 2\nall: train\ntrain: data\n\t@$(RUN) \\\n\ttrain.py\n"
    (tmp_path / "Makefile").write_text(f"{makefile}data test:\n\tpython3 data.py\n")
    of = _with(command).replace("workload: {", "workload: {files: ., ")
    with pytest.raises(RecipeError, match="starts torchrun on 2 instances"):
        refuse_unclear_nodes(read_recipe(of, "r.yaml"), tmp_path)
    other = _with("make test").replace("workload: {", "workload: {files: ., ")
    refuse_unclear_nodes(read_recipe(other, "r.yaml"), tmp_path)


def _with(command: str, *, nodes: str = "") -> str:
    key = f"nodes: {nodes}, " if nodes else ""
    workload = f"workload: {{{key}command: {json.dumps(command)}}}\n"
    return f"name: job\ninstances: {{types: c5.large, count: 2}}\n{workload}"
