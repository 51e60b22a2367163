"""Types by what they must have: which match, the cheapest first, and what the plan says of the others."""

from decimal import Decimal

import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CapacityError, RecipeError
from dlcloud.model.instance import Market
from dlcloud.planning.choice import match_types
from dlcloud.recipe.instances import Requirements
from tests.fakes.samples import price

CATALOG = Catalog()
EVERY = CATALOG.every()
PRICES = CATALOG.listed_prices("us-east-1")


def choose(prices=PRICES, markets=(Market.ON_DEMAND,), **needs):
    return match_types(Requirements(**needs), EVERY).cheapest(prices, markets)


def test_24_gb_of_gpu_memory_are_what_a_gpu_sold_with_24_gb_has():
    # EC2 describes an L4 with 22,888 MiB.
    assert choose(gpu_memory_gib="24").names[0] == "g6.xlarge"
    assert choose(gpu="A100:8", gpu_memory_gib="80").names == ("p4de.24xlarge",)


def test_a_number_is_the_least_and_ranges_are_held():
    types = choose(vcpus="16-32", memory_gib="64", instruction_set=["avx512_vnni"]).types
    assert all(16 <= entry.hardware.vcpus <= 32 and entry.hardware.memory_gib >= 64 for entry in types)
    assert all({"vnni", "amx"} & set(entry.hardware.cpu_isa) for entry in types)
    assert [entry.hourly_usd for entry in types] == sorted(entry.hourly_usd for entry in types)


def test_what_is_unusual_for_a_workload_is_used_only_by_name():
    assert all(
        entry.hardware.status == "current"
        and entry.hardware.accelerator is None
        and entry.hardware.architecture == "x86_64"
        and not entry.hardware.name.startswith("t")
        for entry in choose(vcpus="2").types
    )
    assert choose(types=["t3.*"], vcpus="4+").names == ("t3.xlarge", "t3.2xlarge")
    assert choose(vcpus="4-4", architecture="arm64").types[0].hardware.architecture == "arm64"
    assert choose(types=["c7g.*"], vcpus="4-4").names == ("c7g.xlarge",)
    # A cluster has one image.
    assert choose(types=["c7g.*", "c7i.*"], vcpus="4-4").names == ("c7i.xlarge",)


def test_excluded_types_and_dear_ones_are_left_out():
    choice = choose(gpu="L4", exclude=["gr6.*"], max_usd_per_hour=Decimal(1))
    assert choice.names == ("g6.xlarge", "g6.2xlarge")
    assert "left out by max_usd_per_hour: g6.4xlarge (1.3232 USD/h), g6.8xlarge (2.0144 USD/h), g6.16" in (
        "\n".join(choice.notes)
    )


def test_the_price_is_that_of_the_market_that_is_asked_first():
    prices = [
        price("g6.xlarge", "0.8"),
        price("g6.2xlarge", "0.9"),
        price("g6.xlarge", "0.5", market=Market.SPOT),
        price("g6.2xlarge", "0.4", market=Market.SPOT),
    ]
    both = (Market.SPOT, Market.ON_DEMAND)
    assert choose(prices, gpu="L4").names[:2] == ("g6.xlarge", "g6.2xlarge")
    assert choose(prices, both, gpu="L4").names[:2] == ("g6.2xlarge", "g6.xlarge")
    # One of the markets is cheap enough; the plan leaves the other out.
    assert choose(prices, both, gpu="L4", max_usd_per_hour=Decimal("0.4")).names == ("g6.2xlarge",)


def test_a_plan_asks_for_ten_types_at_most_and_names_dearer_ones():
    choice = choose(gpu_memory_gib="16")
    assert len(choice.names) == 10
    assert "10 of " in choice.notes[0]
    assert choice.notes[1].startswith("left out by price: ")


@pytest.mark.parametrize(
    ("needs", "near"),
    [
        ({"gpu": "L5"}, "L4"),
        ({"gpu": "RTX PRO 6000"}, "RTX PRO Server 6000"),
        ({"instruction_set": ["avx512_vni"]}, "avx512_vnni"),
        ({"types": ["g66.*"]}, "g6.*"),
        ({"types": ["c7i.xlage", "c7i.*"]}, "c7i.xlarge"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest_known_ones(needs, near):
    with pytest.raises(RecipeError) as caught:
        choose(**needs)
    assert near in caught.value.hint


def test_a_name_to_exclude_that_no_type_has_is_stated():
    notes = choose(gpu="L4", exclude=["gr6.*", "gr66.*"]).notes
    assert "exclude: no type gr66.* is offered" in notes
    assert not any("gr6.*" in note for note in notes[1:])


def test_if_nothing_matches_the_hint_says_what_comes_nearest():
    with pytest.raises(CapacityError, match="no instance type has gpu: A100, gpu_memory_gib: 80") as caught:
        choose(gpu="A100", gpu_memory_gib="80")
    assert "p4de.24xlarge (8x A100)" in caught.value.hint
