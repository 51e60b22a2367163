"""Which benchmarks fit a machine, by what its type promises and by what the instance shows."""

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness.benchmark import Benchmark, HardwareNeed
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import Hardware
from dlcloud.planning.fit import (
    FLAGS_OF_ISA,
    KnownType,
    Machine,
    fit,
    machine_of_probe,
    machine_of_type,
    successors,
)

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
