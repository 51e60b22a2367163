"""Types that do not boot the image, have no driver in it, or that the workload has no form for."""

from dataclasses import replace

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.model.instance import Accelerator, Image, Market
from dlcloud.planning.fit import KnownType, check_types
from dlcloud.planning.plan import make_plan
from tests.fakes.samples import RECIPE, hardware, observed, recipe

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
