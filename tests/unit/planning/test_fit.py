"""Which workloads fit a machine: what benchmarks need of it, and what does not boot or has no driver."""

from dataclasses import replace

import pytest

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark, HardwareNeed
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Accelerator, Hardware, Image, Market
from dlcloud.planning.fit import (
    FLAGS_OF_ISA,
    KnownType,
    Machine,
    check_types,
    fit,
    machine_of_probe,
    machine_of_type,
    successors,
)
from dlcloud.planning.plan import make_plan
from tests.fakes.samples import RECIPE, hardware, observed, recipe

BF16 = ("avx512_bf16", "amx_bf16")


def benchmark(name, *needs):
    return Benchmark(name=name, module="m", requirements="r", summary="s", options=(), needs=needs, sweep={})


ALL = [
    benchmark("plain", HardwareNeed(flags=("amx_bf16",), flags_name="AMX", advice="slower")),
    benchmark("gpu", HardwareNeed(gpu=True)),
    benchmark("large", HardwareNeed(memory_gib=32)),
    benchmark("mixed", HardwareNeed(flags=BF16, flags_name="AVX512_BF16 or AMX")),
    benchmark(
        "int8",
        HardwareNeed(setting="bf16", flags=BF16),
        HardwareNeed(setting="int8", flags=("avx512_vnni",), flags_name="VNNI", advice="half the gain"),
    ),
]


def test_what_a_machine_lacks_is_said_for_benchmarks_and_for_settings():
    small = Machine(name="t", flags=frozenset(), memory_gib=16.0, gpus=0)
    fits = fit(ALL, small)
    assert fits.benchmarks == ("plain", "int8")
    assert [(part.benchmark, part.setting, part.reason) for part in fits.left_out] == [
        ("gpu", "", "t has no NVIDIA GPU"),
        ("large", "", "t has 16 GiB of memory, 32 are needed"),
        ("mixed", "", "t has no AVX512_BF16 or AMX"),
        ("int8", "bf16", "t has no avx512_bf16 or amx_bf16"),
    ]
    assert [part.reason for part in fits.advice] == [
        "t has no AMX: slower",
        "t has no VNNI: half the gain",
    ]


def test_types_of_the_articles_and_successors_promise_their_features():
    catalog = Catalog()
    skylake, ice_lake, sapphire, turing = (
        machine_of_type(catalog.hardware(name))
        for name in ("c5.18xlarge", "c6i.xlarge", "c7i.xlarge", "g4dn.xlarge")
    )
    assert not skylake.flags & {"avx512_vnni", *BF16}
    assert "avx512_vnni" in ice_lake.flags
    assert not ice_lake.flags & set(BF16)
    assert set(BF16) <= sapphire.flags
    assert (turing.gpus, sapphire.gpus) == (1, 0)


def test_every_word_of_the_table_of_types_is_understood():
    assert {isa for hardware in Catalog() for isa in hardware.cpu_isa} <= FLAGS_OF_ISA.keys()


def test_an_instance_shows_what_it_has():
    machine = machine_of_probe("i-1", Hardware(cpu_flags=("avx2",), memory_gib=7.6, gpus=("Tesla T4",)))
    assert machine == Machine(name="i-1", flags=frozenset({"avx2"}), memory_gib=7.6, gpus=1)


def test_what_the_catalog_sweeps_are_its_own_parameters():
    for entry in BENCHMARKS.values():
        assert {*(entry.sweep or {}), *entry.tiny, *entry.defaults} <= entry.parameters.keys(), entry.name
        assert all(option.many for option in entry.options if option.selects)
        assert entry.sweep is None or entry.tiny


def test_a_type_that_a_region_does_not_offer_is_not_its_own_successor():
    types = [KnownType(hardware=one, price=None) for one in Catalog().every()]
    near = [entry.hardware.name for entry in successors("g6.xlarge", types)]
    assert near
    assert "g6.xlarge" not in near


CATALOG = Catalog()
KNOWN = [
    KnownType(hardware=entry, price=CATALOG.on_demand_price(entry.name, "us-east-1")) for entry in CATALOG
]
COMMAND = "name: own\ninstances:\n  types: [x.large]\nworkload:\n  command: ./run\n"
BENCHMARK = COMMAND.replace("command: ./run", "benchmark: quantization")
PLAIN = Image(image_id="ami-1", name="ubuntu", root_device="/dev/sda1", architecture="x86_64")
ARM = replace(PLAIN, image_id="ami-2", architecture="arm64")

XEON = hardware("c7i.xlarge")
GRAVITON = replace(hardware("c7g.xlarge"), architectures=("arm64",), cpu_isa=())
INFERENTIA = replace(
    hardware("inf2.xlarge"),
    accelerator=Accelerator(name="Inferentia2", count=1, memory_mib=32768, manufacturer="AWS"),
)
PART = replace(
    hardware("g6f.large"), accelerator=Accelerator(name="L4", count=1, memory_mib=2861, share=0.125)
)


def check(text, *types, image=PLAIN):
    return check_types(
        recipe(text), [t.name for t in types], {t.name: t for t in types}, image, lambda: KNOWN
    )


def refusal(text, *types, image=PLAIN):
    with pytest.raises(CloudError) as caught:
        check(text, *types, image=image)
    return caught.value


def with_parameters(text, **parameters):
    return text + f"  parameters: {parameters}\n".replace("'", "")


def test_types_of_two_architectures_are_refused():
    error = refusal(COMMAND, XEON, GRAVITON)
    assert error.message == (
        "c7g.xlarge (arm64) cannot boot the x86_64 image of c7i.xlarge: a cluster has one image"
    )
    assert "dlcloud bench launches each type by itself" in error.hint


def test_an_image_of_another_architecture_is_refused():
    text = COMMAND.replace("[x.large]", "[x.large]\n  image: ami-1")
    assert refusal(text, GRAVITON).message == "c7g.xlarge (arm64) cannot boot image ami-1 (x86_64)"


def test_a_benchmark_has_no_form_for_inferentia():
    error = refusal(BENCHMARK, INFERENTIA)
    assert error.message == (
        "quantization has no form for this machine: inf2.xlarge has 1x Inferentia2, which no bundled "
        "benchmark uses"
    )
    assert error.hint.startswith("types that would do: ")
    assert error.hint.count("USD/h") == 3


def test_a_command_on_inferentia_needs_an_image_of_its_own():
    error = refusal(COMMAND, INFERENTIA)
    assert error.message == "image auto has no driver for Inferentia2 (inf2.xlarge)"
    assert "/aws/service/neuron/dlami/" in error.hint
    assert check(COMMAND.replace("[x.large]", "[x.large]\n  image: ami-1"), INFERENTIA) == []


def test_a_part_of_a_gpu_needs_the_grid_driver():
    error = refusal(COMMAND, PART)
    assert "g6f.large has 1/8 L4: a part of a GPU needs NVIDIA's GRID driver" in error.message
    assert check(COMMAND.replace("[x.large]", "[x.large]\n  image: ami-1"), PART) == []
    assert check("cloud: local\n" + COMMAND, PART) == [error.message]


@pytest.mark.parametrize(
    ("text", "type_", "image", "reason"),
    [
        (BENCHMARK.replace("quantization", "tensorflow"), GRAVITON, ARM, "x86_64 is needed"),
        (with_parameters(BENCHMARK, engine="[openvino, bigdl]"), GRAVITON, ARM, "x86_64 is needed"),
        (with_parameters(BENCHMARK, device="cuda"), XEON, PLAIN, "no NVIDIA GPU"),
    ],
)
def test_what_a_workload_has_no_form_for_is_refused(text, type_, image, reason):
    assert reason in refusal(text, type_, image=image).message
    assert check(COMMAND, type_, image=image) == []


def test_a_market_that_ec2_does_not_sell_is_left_out_of_the_plan():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot-then-on-demand\n")
    only = replace(hardware(), markets=(Market.ON_DEMAND,))
    plan = make_plan(recipe(text), observed(known=[only]))
    assert ("c7i.xlarge", Market.SPOT) not in {(pool.instance_type, pool.market) for pool in plan.pools}
    assert "c7i.xlarge spot is left out: EC2 does not sell it so" in plan.reasons
