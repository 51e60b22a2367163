"""What a user says of a job for its prediction."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.prediction.measured_types import Kind
from dlcloud.prediction.resemblance import describe_by_facts, read_description, resemblances
from dlcloud.resources.type_table import type_table


def test_nothing_said_is_no_description():
    assert read_description("", None, generates=False) is None


@pytest.mark.parametrize("text", ["7B", "7.0 b", "7000M", "7000000000"])
def test_parameters_are_read_as_people_write_them(text):
    described = read_description(text, None, generates=True)
    assert described.file_bytes == pytest.approx(4.24e9, rel=0.01)
    assert (described.kind, described.tokens) == (Kind.GENERATION, 512)


@pytest.mark.parametrize("text", ["large", "-7B", "0", "7T", "1e9", "inf", "999999999999G"])
def test_what_is_no_number_of_parameters_is_refused(text):
    with pytest.raises(RecipeError, match="not a number of parameters"):
        read_description(text, None, generates=False)


def test_tokens_without_parameters_are_refused():
    with pytest.raises(RecipeError, match="describe a model"):
        read_description("", 16, generates=False)


LANGUAGE = {"model_bytes": 4_000_000_000, "prompt_tokens": 512, "streams": 2, "engine": "llama.cpp"}


def test_a_language_models_results_describe_their_job():
    prompt = describe_by_facts(LANGUAGE)
    assert (prompt.kind, prompt.tokens, prompt.file_bytes) == (Kind.PROMPT, 1024, 4_000_000_000)
    generation = describe_by_facts({**LANGUAGE, "generated_tokens": 64})
    assert (generation.kind, generation.tokens) == (Kind.GENERATION, 64)


@pytest.mark.parametrize(
    "facts", [{}, {"model_bytes": 100}, {**LANGUAGE, "streams": 0}, {**LANGUAGE, "model_bytes": "4 GB"}]
)
def test_other_results_describe_nothing(facts):
    assert describe_by_facts(facts) is None


def test_a_description_weighs_the_references_that_are_like_it():
    references = type_table().references
    (only,) = resemblances(references, read_description("7B", 128, generates=True))
    best = references[max(range(len(references)), key=only.weights.__getitem__)]
    assert (only.probability, only.kind) == (1.0, Kind.GENERATION)
    assert best.kind is Kind.GENERATION
    assert best.name.startswith("llama")
    assert sum(only.weights) == pytest.approx(1.0, abs=0.1)


def test_less_is_known_of_a_job_far_from_all_references():
    references = type_table().references
    variances = [
        resemblances(references, read_description(size, 128, generates=True))[0].variance
        for size in ("7B", "100K")
    ]
    assert variances[0] < variances[1]


def test_a_job_without_a_description_can_be_anything():
    possible = resemblances(type_table().references, None)
    assert sum(one.probability for one in possible) == pytest.approx(1.0)
    assert {one.kind for one in possible} == {*Kind}


def test_a_language_model_of_unknown_size_is_no_other_program():
    possible = resemblances(type_table().references, read_description("unknown", None, generates=False))
    assert {one.kind for one in possible} == {Kind.PROMPT, Kind.GENERATION}
