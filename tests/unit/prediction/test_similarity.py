"""What two types share of a job's variance, weight by weight."""

from dataclasses import astuple, fields, replace
from math import exp, log2

import pytest

from dlcloud.prediction.measured_types import LEVELS, PROCESSORS, Traits, Weights, covariance

NOTHING = Weights(features=(0.0,) * 8, **{field.name: 0.0 for field in fields(Weights)[1:]})
SHEET = replace(PROCESSORS["8488C"], log2_operations=6.0, ghz=3.2, memory_gb_s=256, cores=32)
BASE = Traits(name="c7i.2xlarge", processor=SHEET, cores=4, threads_per_core=2, sockets=1)
LARGER = replace(BASE, cores=8)
OTHER_SHEET = replace(BASE, processor=replace(SHEET, log2_operations=6.5, memory_gb_s=128))
ARM = replace(BASE, processor=replace(SHEET, vendor="arm"))
AMD = replace(BASE, processor=replace(SHEET, vendor="amd"))
OTHER_DESIGN = replace(BASE, processor=replace(SHEET, design="emr"))
METAL = replace(BASE, name="c7i.metal-24xl")
TWO_SOCKETS = replace(BASE, sockets=2)
OTHER_NAME = replace(BASE, processor=replace(SHEET, name="8477C"))
ONE_THREAD = replace(BASE, threads_per_core=1)
OTHER_FAMILY = replace(BASE, name="m7i.2xlarge")
NEAR = exp(-0.2222)
"""Of types of which one has twice the cores of the other."""
SHEETS = exp(-2.0 * 0.5**2 - 2.0 * 1.0**2)
"""Of sheets that are half a doubling apart in compute, and one in bandwidth."""


@pytest.mark.parametrize(
    ("weight", "one", "other", "shared"),
    [
        ("size", BASE, OTHER_SHEET, 1.0),
        ("size", BASE, LARGER, exp(-0.125)),
        ("sheet", BASE, LARGER, 1.0),
        ("sheet", BASE, OTHER_SHEET, SHEETS),
        ("sheet_size", BASE, BASE, 1.0),
        ("sheet_size", BASE, LARGER, NEAR),
        ("sheet_size", LARGER, OTHER_SHEET, NEAR * SHEETS),
        ("arm", BASE, AMD, 1.0),
        ("arm", BASE, ARM, 0.0),
        ("arm", ARM, ARM, 1.0),
        ("arm", LARGER, AMD, NEAR),
        ("design", BASE, LARGER, 1.0),
        ("design", BASE, OTHER_DESIGN, 0.0),
        ("metal", BASE, LARGER, NEAR),
        ("metal", BASE, METAL, 0.0),
        ("metal", METAL, METAL, 1.0),
        ("metal", BASE, OTHER_DESIGN, 0.0),
        ("sockets", BASE, LARGER, NEAR),
        ("sockets", BASE, TWO_SOCKETS, 0.0),
        ("sockets", TWO_SOCKETS, TWO_SOCKETS, 1.0),
        ("sockets", BASE, OTHER_DESIGN, 0.0),
        ("processor", BASE, LARGER, 1.0),
        ("processor", BASE, OTHER_NAME, 0.0),
        ("processor", BASE, OTHER_DESIGN, 0.0),
        ("same_size", BASE, METAL, 1.0),
        ("same_size", BASE, LARGER, 0.0),
        ("same_size", BASE, ONE_THREAD, 0.0),
        ("same_size", BASE, OTHER_NAME, 0.0),
        ("family", BASE, METAL, 1.0),
        ("family", BASE, OTHER_FAMILY, 0.0),
    ],
)
def test_a_weight_is_shared_by_types_that_have_its_trait_in_common(weight, one, other, shared):
    weights = replace(NOTHING, **{weight: 1.0})
    assert covariance(one, other, weights) == pytest.approx(shared)
    assert covariance(other, one, weights) == pytest.approx(shared)


def test_features_are_standardized_and_shared_by_their_product():
    whole = replace(BASE, cores=64, sockets=2)  # two processors: 1.5 times the bandwidth, one's cache
    expected = [
        (log2(64) - 3.6) / 2,
        (6 + log2(3.2) - 7.3) / 0.75,
        (log2(3.2) - 1.65) / 0.23,
        (log2(256 * 1.5) - 6) / 1.9,
        (log2(105) - 4) / 2.2,
        0.0,
        0.0,
        0.5,
    ]
    assert whole.features == pytest.approx(expected)
    part = replace(BASE, name="t3.2xlarge", threads_per_core=1)  # an eighth, with 1.5 times its bandwidth
    shared = [(log2(256 * 1.5 / 8) - 6) / 1.9, (log2(105 / 8) - 4) / 2.2]
    assert part.features[3:] == pytest.approx([*shared, 2.0, 0.0, -0.5])
    for place, feature in enumerate(part.features):
        weights = replace(NOTHING, features=tuple(float(number == place) for number in range(8)))
        assert covariance(whole, part, weights) == pytest.approx(expected[place] * feature)
    with pytest.raises(ValueError, match="longer"):
        covariance(whole, part, replace(NOTHING, features=(1.0,)))


def test_all_weights_add_up():
    features = sum(
        weight * feature**2 for weight, feature in zip(LEVELS.features, BASE.features, strict=True)
    )
    assert covariance(BASE, BASE, LEVELS) == pytest.approx(features + sum(astuple(LEVELS)[1:]))
