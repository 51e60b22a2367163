"""The TensorFlow benchmark: settings, the search on variants of known speed, the tiny form on the engine."""

import dataclasses
import io
import json
import math
import re
from dataclasses import dataclass, field

import pytest

from dlcloud.benchmarks import catalog
from dlcloud.benchmarks.harness.case import Finish, Limits
from dlcloud.benchmarks.harness.records import Recorder
from dlcloud.benchmarks.tensorflow_cpu import __main__ as main
from dlcloud.benchmarks.tensorflow_cpu.__main__ import Progress, Search, compare_losses
from dlcloud.benchmarks.tensorflow_cpu.settings import (
    SIZES,
    TrainingMachine,
    arguments_of,
    article_configuration,
    article_facts,
    describe,
    environment_of,
    inspect_machine,
    knobs_of,
    stock_configuration,
)
from tests.benchmarks.conftest import read_records, run_python
from tests.fakes.variants import FakeVariant, Machine, session_of

ENTRY = catalog.BENCHMARKS["tensorflow"]
BIG = TrainingMachine(
    cores=[0, 1, 2, 3, 4, 5, 6, 7],
    logical=16,
    flags=["avx512f", "avx512_bf16"],
    allocators={"tcmalloc": "/usr/lib/libtcmalloc_minimal.so.4"},
    free_gib=64.0,
)
OLD = dataclasses.replace(BIG, logical=8, flags=["avx512f"], allocators={})
NAMES = tuple(knob.name for knob in knobs_of("cpu", BIG))


class KnownVariant(FakeVariant):
    """A variant whose losses fall, or do not."""

    losses = (7.0, 6.0, 5.0)

    def finish(self):
        return Finish(metrics={}, outputs=[list(self.losses)])


@dataclass
class Laboratory:
    """Searches on variants whose speed is the product of what each knob's value earns."""

    earns: dict
    machine: TrainingMachine = BIG
    diverging: tuple = ()
    at_once: int = 8
    knobs: tuple = NAMES
    most_s: float | None = None
    vm: Machine = field(default_factory=Machine)
    messages: io.StringIO = field(default_factory=io.StringIO)
    variants: list = field(default_factory=list)

    def variant(self, name, setting):
        speed = math.prod(self.earns.get((knob, value.name), 1.0) for knob, value in setting.items())
        self.variants.append(KnownVariant(name, speed, self.vm, process_spread=0.02))
        if any((knob, value.name) in self.diverging for knob, value in setting.items()):
            self.variants[-1].losses = (7.0, 8.0, 9.0)
        return self.variants[-1]

    def search(self):
        self.recorder = Recorder(output=io.StringIO(), messages=self.messages)
        session = session_of(self.vm, self.recorder)
        self.all_knobs = knobs_of("cpu", self.machine)
        result = Search(
            name="net batch 8", knobs=self.all_knobs, searched=self.knobs,
            limits=Limits(rounds=3, max_s=5.0, width=0.1), session=session, at_once=self.at_once,
            make_variant=self.variant, progress=Progress(left=9), most_s=self.most_s,
        ).run()  # fmt: skip
        assert all(variant.closed for variant in self.variants)
        return result


def test_the_search_finds_the_best_of_each_knob_and_says_what_it_earned():
    laboratory = Laboratory(
        {
            ("onednn", "on"): 2.0,
            ("precision", "bf16-rewrite"): 1.5,
            ("precision", "bf16-policy"): 1.3,
            ("allocator", "tcmalloc"): 1.01,
            ("layout", "NCHW"): 0.8,
            ("xla", "on"): 0.9,
            ("intra", "physical"): 1.2,
        }
    )
    result = laboratory.search()
    assert (
        describe(result.configuration, laboratory.all_knobs)
        == "onednn=on precision=bf16-rewrite intra=physical"
    )
    earned = [(gain.candidate, round(gain.ratio, 3)) for gain in result.earned]
    assert earned == [("onednn=on", 2.0), ("precision=bf16-rewrite", 1.5), ("intra=physical", 1.2)]
    assert result.summary().startswith("onednn=on 2.00x (1.96 to 2.04), precision=bf16-rewrite 1.50x")
    assert result.summary() in laboratory.messages.getvalue()
    cases = [result.case for result in laboratory.recorder.results if result.baseline]
    assert cases == [f"net batch 8 search {name}" for name in NAMES]


def test_a_value_whose_loss_does_not_fall_is_not_taken_however_fast():
    laboratory = Laboratory(
        {("onednn", "on"): 2.0, ("precision", "bf16-rewrite"): 3.0, ("precision", "bf16-policy"): 1.2},
        diverging=(("precision", "bf16-rewrite"),),
    )
    result = laboratory.search()
    assert describe(result.configuration, laboratory.all_knobs) == "onednn=on precision=bf16-policy"


def test_what_needs_onednn_is_skipped_where_it_brought_nothing():
    laboratory = Laboratory({("onednn", "on"): 0.9, ("precision", "bf16-policy"): 9.0})
    result = laboratory.search()
    assert result.configuration == stock_configuration(laboratory.all_knobs)
    assert result.summary() == "no knob earned anything"
    reasons = {skip.setting: skip.reason for skip in laboratory.recorder.skips}
    assert reasons["layout=NCHW"] == "only with onednn=on, which was not taken"
    assert "precision=bf16-policy" in reasons


def test_too_little_memory_for_all_values_at_once_makes_more_cases():
    laboratory = Laboratory(
        {("onednn", "on"): 2.0, ("precision", "bf16-rewrite"): 1.2, ("precision", "bf16-policy"): 1.5},
        at_once=2,
        knobs=("onednn", "precision"),
    )
    result = laboratory.search()
    assert result.configuration["precision"].name == "bf16-policy"
    cases = {result.case: [] for result in laboratory.recorder.results}
    for result in laboratory.recorder.results:
        cases[result.case].append(result.setting)
    assert cases == {
        "net batch 8 search onednn": ["onednn=off", "onednn=on"],
        "net batch 8 search precision 1": ["precision=fp32", "precision=bf16-rewrite"],
        "net batch 8 search precision 2": ["precision=bf16-rewrite", "precision=bf16-policy"],
    }


def test_a_search_whose_time_is_up_says_which_knobs_it_did_not_turn():
    # A knob of two values takes 6 s here: three rounds of a second each.
    laboratory = Laboratory({("onednn", "on"): 2.0, ("xla", "on"): 3.0}, most_s=10.0)
    result = laboratory.search()
    assert describe(result.configuration, laboratory.all_knobs) == "onednn=on"
    reasons = {skip.setting: skip.reason for skip in laboratory.recorder.skips}
    assert reasons["xla"] == "the 10 s for the search were up"
    assert "onednn" not in reasons


def test_a_machine_says_why_it_lacks_a_value():
    lacking = {
        f"{knob.name}={value.name}": value.unsupported
        for knob in knobs_of("cpu", OLD)
        for value in knob.values
        if value.unsupported
    }
    assert lacking == {
        "precision=bf16-rewrite": "this processor has neither AVX512_BF16 nor AMX",
        "precision=bf16-policy": "this processor has neither AVX512_BF16 nor AMX",
        "allocator=tcmalloc": "tcmalloc is not installed",
        "allocator=jemalloc": "jemalloc is not installed",
        "cpus=one-per-core": "no core has hyper-threads here",
        "intra=physical": "TensorFlow takes 8 by itself",
    }


def test_the_articles_settings_follow_the_physical_cores():
    setting = article_configuration(knobs_of("cpu", BIG), BIG)
    assert environment_of(setting) == {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "OMP_NUM_THREADS": "8",
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "1",
        "KMP_SETTINGS": "1",
    }
    assert arguments_of(setting) == {"precision": "fp32", "layout": "NCHW", "intra": 8, "inter": 1}
    facts = article_facts(BIG, None)
    assert (facts["physical_cores_found"], facts["hyper_threads_per_core"]) == (8, 2)
    assert "KMP_BLOCKTIME" in facts["ignored"]
    assert "ignored" not in article_facts(BIG, "libiomp5.so")


def test_a_preloaded_library_of_the_users_stays_preloaded(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/theirs.so")
    allocator = next(knob for knob in knobs_of("cpu", BIG) if knob.name == "allocator")
    chosen = next(value for value in allocator.values if value.name == "tcmalloc")
    assert environment_of({"allocator": chosen})["LD_PRELOAD"] == (
        "/usr/lib/libtcmalloc_minimal.so.4:/opt/theirs.so"
    )


@pytest.mark.parametrize(
    ("capability", "left"),
    [
        (6.1, []),
        (7.5, ["fp16-policy", "fp16-rewrite"]),
        (9.0, ["tf32", "fp16-policy", "fp16-rewrite", "bf16-policy"]),
    ],
)
def test_a_gpu_is_asked_only_for_what_its_tensor_cores_compute(capability, left):
    machine = dataclasses.replace(BIG, gpu="some GPU", compute_capability=capability)
    (precision,) = (knob for knob in knobs_of("gpu", machine) if knob.name == "precision")
    assert [value.name for value in precision.values[1:] if value.unsupported is None] == left
    assert precision.values[0].name == "fp32"


@pytest.mark.parametrize(
    ("reference", "other", "likewise"),
    [
        ([7.0, 6.5, 6.0], [7.0, 6.6, 6.1], True),
        ([7.0, 6.5, 6.0], [7.0, 7.0, 7.0], False),
        ([7.0, 6.5, 6.0], [7.0, 6.5, math.nan], False),
        ([7.0, 6.5, 6.0], [7.0, 5.0, 3.0], False),
        ([7.0, 6.5], [7.0, 9.0], None),
        ([7.0, 7.5, 8.0], [7.0, 7.5, 8.0], None),
        ([7.0, 6.5, 6.0, 5.0], [7.0, 6.6, 6.1], True),
    ],
)
def test_losses_fall_likewise_or_not(reference, other, likewise):
    facts = compare_losses([reference], [other])
    assert facts["loss_falls_likewise"] is likewise
    json.dumps(facts, allow_nan=False)


def test_a_batch_that_does_not_fit_is_skipped_with_its_reason():
    output = io.StringIO()
    recorder = Recorder(output=None, messages=output)
    small = dataclasses.replace(BIG, free_gib=8.0)
    experiments = main.Experiments(
        arguments=main.parse(["--network", "resnet152", "--batch", "1", "128"]),
        machine=small,
        knobs=knobs_of("cpu", small),
        search_limits=Limits(),
        session=session_of(Machine(), recorder),
    )
    assert experiments._fitting_batches("resnet152") == [1]
    (skip,) = recorder.skips
    assert (skip.case, skip.setting) == ("resnet152 batch 128", "all")
    assert skip.reason.endswith("GiB, and 8.0 GiB are free")


def test_larger_batches_and_more_slots_take_more_memory():
    size = SIZES["vgg16"]
    assert size.training_gib(8, "sgd") < size.training_gib(8, "rmsprop") < size.training_gib(64, "rmsprop")


def test_this_machine_is_seen():
    machine = inspect_machine("cpu")
    assert 1 <= len(machine.cores) <= machine.logical
    assert machine.free_gib > 0
    assert inspect_machine("gpu").gpu is None or inspect_machine("gpu").compute_capability > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--network", "lenet"], "lenet"),
        (["--batch", "0"], "'0' is not a whole number of at least 1"),
        (["--knobs", "magic"], "magic"),
        (["--settings", "stock", "--search-batch", "8"], "--search-batch is of the search"),
    ],
)
def test_a_bad_argument_is_reported_at_once(arguments, says, capsys):
    with pytest.raises(SystemExit) as caught:
        main.parse(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_stock_is_always_compared_and_a_gpu_has_its_own_requirements():
    assert main.parse(["--settings", "today"]).settings == ["stock", "today"]
    assert ENTRY.requirements_for([]).name == "tensorflow.txt"
    assert ENTRY.requirements_for(["--device", "gpu"]).name == "tensorflow_gpu.txt"


SHORT = [
    "--network", "tiny", "--batch", "4", "--rounds", "3", "--slice-seconds", "0.01", "--max-seconds", "0.1",
    "--warm-up-seconds", "0.5", "--search-rounds", "1", "--search-seconds", "0.1", "--knobs", "onednn",
]  # fmt: skip


@pytest.mark.long
def test_the_tiny_network_trains_in_every_setting(alone, tensorflow_python):
    words = ["-m", "benchmarks.tensorflow_cpu", *SHORT, "--output", "records.jsonl"]
    done = run_python(tensorflow_python, alone, *words)
    assert done.returncode == 0, done.stderr
    results = {(one["case"], one["setting"]): one for one in read_records(alone / "records.jsonl", "result")}
    assert list(results) == [
        ("tiny batch 4 search onednn", "onednn=off"),
        ("tiny batch 4 search onednn", "onednn=on"),
        *(("tiny batch 4", setting) for setting in ("stock", "article", "today")),
    ]
    facts = {
        setting: record["facts"] for (case, setting), record in results.items() if case == "tiny batch 4"
    }
    assert facts["stock"]["knobs"] == "as stock"
    assert "gemm_api f32" in facts["stock"]["kernels"]
    assert "convolution f32" in facts["article"]["kernels"]
    assert facts["article"]["knobs"].startswith("onednn=on")
    assert "layout=NCHW" in facts["article"]["knobs"]
    assert "OMP_NUM_THREADS" in facts["article"]["ignored"]
    assert facts["article"]["onednn_threads"].startswith("threadpool")
    assert facts["article"]["loss_falls_likewise"] is True
    assert facts["today"]["earned"]
    assert facts["today"]["engine"] == "TensorFlow 2.21.0"
    assert {fact["flop_per_input"] for fact in facts.values()} == {10_902_528}
    assert all(0 < fact["share_of_peak_percent"] <= 100 for fact in facts.values())
    assert "BiasAdd" in facts["stock"]["uncounted_operators"]
    assert facts["article"]["baseline_loss_first"] == pytest.approx(facts["article"]["loss_first"], rel=1e-3)


COUNT = """
import json
from tensorflow.python.framework import ops
from benchmarks.tensorflow_cpu.training import train
from benchmarks.tensorflow_cpu import training as program
training = train(network="tiny", batch=4, seed=0, optimizer="sgd")
graph = training._step.get_concrete_function(*training._feed).graph
nodes = [node.node_def for node in graph.get_operations() if node.type in program.COUNTERS]
profiled = sum(ops.get_stats_for_node_def(graph, node, "flops").value for node in nodes)
print(json.dumps([program.count_work(graph, 4).flop, profiled / 4]))
"""


@pytest.mark.long
def test_operations_are_those_that_tensorflows_profiler_counts(alone, tensorflow_python):
    done = run_python(tensorflow_python, alone, "-c", COUNT)
    counted, profiled = json.loads(done.stdout.splitlines()[-1])
    assert counted == profiled > 0


PROVE = """
import json, sys
from benchmarks.tensorflow_cpu.training import prove, kernel_facts
from benchmarks.tensorflow_cpu.training import train
from benchmarks.tensorflow_cpu.training import LossScale
shared = {"network": "tiny", "batch": 4, "seed": 0}
facts = dict(prove(**shared, optimizer="momentum", precision="bf16-policy").facts)
LossScale.FIRST = 2.0 ** 60
scaled = train(**shared, optimizer="rmsprop", precision="fp16-policy")
for _ in range(3):
    scaled.step()
names = ["sm80_xmma_fprop_implicit_gemm_f16f16_f16f32", "volta_fp16_s884cudnn_fp16_128x128", "add_kernel"]
print(json.dumps({"facts": facts, "losses": scaled.outputs()[0], "gpu": kernel_facts(names)}))
"""


def test_bf16_is_proven_by_onednn_log_and_fp16_overflows_are_left_out(alone, tensorflow_python):
    variables = {"ONEDNN_VERBOSE": "1", "TF_ENABLE_ONEDNN_OPTS": "1"}
    done = run_python(tensorflow_python, alone, "-c", PROVE, **variables)
    output = json.loads(done.stdout.splitlines()[-1])
    if "avx512_bf16" in inspect_machine("cpu").flags:
        assert output["facts"]["computed_in"].endswith(" bf16")
        assert "f32" not in output["facts"]["computed_in"]
        assert re.search(r"avx512_core_bf16|amx", output["facts"]["kernels"])
    assert output["losses"] == pytest.approx([output["losses"][0]] * 3)
    assert (output["gpu"]["gpu_kernels"], output["gpu"]["tensor_core_kernels"]) == (3, 2)
