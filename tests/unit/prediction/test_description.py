"""What a user says of a job for its prediction."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.description import read_description
from dlcloud.prediction.predictor import weights_of
from dlcloud.resources.type_table import type_table


def test_nothing_said_is_no_description():
    assert read_description("", None, generates=False) is None


@pytest.mark.parametrize("text", ["7B", "7.0 b", "7000M", "7000000000"])
def test_parameters_are_read_as_people_write_them(text):
    described = read_description(text, None, generates=True)
    assert described.file_bytes == pytest.approx(4.24e9, rel=0.01)
    assert (described.is_generation, described.tokens) == (True, 512)


@pytest.mark.parametrize("text", ["large", "-7B", "0", "7T", "1e9", "inf", "999999999999G"])
def test_what_is_no_number_of_parameters_is_refused(text):
    with pytest.raises(RecipeError, match="not a number of parameters"):
        read_description(text, None, generates=False)


def test_tokens_without_parameters_are_refused():
    with pytest.raises(RecipeError, match="describe a model"):
        read_description("", 16, generates=False)


def test_a_description_weighs_the_references_that_are_like_it():
    references = type_table().references
    weights = weights_of(references, read_description("7B", 128, generates=True))
    best = references[max(range(len(weights)), key=weights.__getitem__)]
    assert best.is_generation
    assert best.name.startswith("llama")
