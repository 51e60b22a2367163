"""`bench --predict`: which types are measured."""

import pytest

from dlcloud.app.results.predict import choose_measured
from dlcloud.model.errors import RecipeError


def choose(*types):
    return choose_measured(None, types, region="us-east-1", is_local=True)  # bundled prices need no context


def test_three_types_of_different_processors_are_chosen_of_all():
    chosen = choose()
    assert len({name.split(".")[0] for name in chosen}) == 3


def test_at_most_three_of_those_named_are_measured():
    named = ("c7i.xlarge", "c6a.4xlarge", "r7g.8xlarge", "m5.large", "c7i.large")
    assert len(choose(*named)) == 3
    assert set(choose(*named)) <= set(named)


def test_gpu_types_are_measured_next_to_cpu_types_one_of_each_gpu():
    gpus = ("g5.2xlarge", "g5.xlarge", "g4dn.xlarge", "g6.xlarge", "g6e.xlarge")
    assert choose("g5.xlarge") == ("g5.xlarge",)
    assert {*choose(*gpus)} == {"g5.2xlarge", "g4dn.xlarge", "g6.xlarge"}
    assert len(choose(*gpus, "c7i.xlarge", "m7a.xlarge")) == 5


def test_a_type_without_a_ground_is_refused():
    with pytest.raises(RecipeError, match=r"g6f\.large"):
        choose("g6f.large")
    with pytest.raises(RecipeError, match=r"g4ad\.xlarge"):
        choose("g4ad.xlarge")  # its processor would be predicted, its GPU is paid
