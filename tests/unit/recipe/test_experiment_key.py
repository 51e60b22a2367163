"""`experiment`: its trials, and its faults."""

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.experiment import trial_words
from dlcloud.recipe.recipe import read_recipe

BASE = """
name: sweep
cloud: local
instances: {types: c5.large}
workload: {command: python3 train.py, facts: {accuracy: 'acc=(.*)'}}
experiment:
  metric: accuracy
"""


def experiment_of(text):
    return read_recipe(BASE + text, "sweep.yaml").experiment


def test_exclude_leaves_out_what_fits_some_values():
    experiment = experiment_of("  matrix: {a: [1, 2], b: [1, 2]}\n  exclude: [{a: 1, b: 2}, {a: 2}]")
    assert experiment.trials() == [{"a": "1", "b": "1"}]


def test_include_adds_to_what_fits_or_is_a_trial_as_in_github_actions():
    text = (
        "  matrix: {fruit: [apple, pear], animal: [cat, dog]}\n"
        "  include:\n"
        "    - {color: green}\n"
        "    - {color: pink, animal: cat}\n"
        "    - {fruit: apple, shape: circle}\n"
        "    - {fruit: banana}\n"
        "    - {fruit: banana, animal: cat}\n"
    )
    assert experiment_of(text).trials() == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  goal: maximize", "name one of matrix, list and search"),
        ("  matrix: {a: [1]}\n  list: [{a: 1}]", "name one of matrix, list and search"),
        ("  list: [{a: 1}]\n  exclude: [{a: 1}]", "include and exclude belong to a matrix"),
        ("  matrix: {a: [1]}\n  exclude: [{b: 1}]", "exclude: b is not in the matrix"),
        ("  matrix: {a: [1]}\n  exclude: [{a: 1}]", "exclude leaves no trial"),
        ("  list: [{a: 1}, {a: 1}]", "2 trials have the same values: a=1"),
        ("  matrix: {a: [1, 1]}", "2 trials have the same values: a=1"),
        ("  search: {trials: 3, space: {a: {low: 2, high: 1}}}", "low must be below high"),
        ("  search: {trials: 3, space: {a: {low: 0, high: 1, log: true}}}", "log needs a low above 0"),
        ("  search: {trials: 3, space: {a: {}}}", "name low and high, or choices"),
        ("  search: {trials: 3, sampler: cmaes, space: {a: {choices: [x, y]}}}", "cmaes searches ranges"),
        ("  matrix: {a b: [1]}", "experiment.matrix"),
    ],
)
def test_faults(text, message):
    with pytest.raises(RecipeError, match=message.replace("(", r"\(")):
        experiment_of(text)


def test_a_matrix_of_too_many_combinations_is_refused_before_they_are_made():
    axis = ", ".join(str(number) for number in range(200))
    text = "".join(f"    p{place}: [{axis}]\n" for place in range(4))
    with pytest.raises(RecipeError, match="1600000000 combinations; at most 10000 trials are run"):
        experiment_of(f"  matrix:\n{text}")


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{benchmark: quantization}", "experiment belongs to a command"),
        ("{command: x, elastic: {}}", "experiment belongs to a command"),
        ("{command: x, nodes: all}", "experiment belongs to a command"),
        ("{command: x, settings: [{name: a}]}", "exclude each other"),
        ("{command: x}", "accuracy is not measured; time is"),
        ("{command: x, throughput: 'a(.*)'}", "accuracy is not measured; throughput is"),
    ],
)
def test_what_has_no_trials_is_refused(workload, message):
    text = BASE.replace("{command: python3 train.py, facts: {accuracy: 'acc=(.*)'}}", workload)
    with pytest.raises(RecipeError, match=message):
        read_recipe(f"{text}  matrix: {{a: [1]}}", "sweep.yaml")


def test_values_are_appended_in_the_form_that_the_command_reads():
    text = "  arguments: {}\n  matrix: {{optimizer.lr: [0.1], +trainer.epochs: [3]}}"
    words = {
        form: trial_words(experiment.trials()[0], experiment.arguments)
        for form in ("yes", "--NAME=VALUE", "NAME=VALUE", "no")
        for experiment in [experiment_of(text.format(form))]
    }
    assert words == {
        "yes": ["--optimizer.lr", "0.1", "--+trainer.epochs", "3"],
        "--NAME=VALUE": ["--optimizer.lr=0.1", "--+trainer.epochs=3"],
        "NAME=VALUE": ["optimizer.lr=0.1", "+trainer.epochs=3"],
        "no": [],
    }


def test_two_parameters_that_would_share_a_variable_are_refused():
    with pytest.raises(RecipeError) as caught:
        experiment_of("  matrix: {a.b: [1], a_b: [1]}")
    assert "a.b and a_b would both be the variable DLCLOUD_VALUE_A_B" in caught.value.message
