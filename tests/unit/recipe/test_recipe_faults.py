"""Every fault of a recipe is reported at once, with its line, and as a RecipeError."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.recipe import Recipe, read_recipe

GOOD = """\
name: good
instances:
  types: [c7i.xlarge]
workload:
  command: python3 train.py
"""

FIVE = """\
name: Bad Name
instances:
  types: [c7i]
  count: 0
  markt: spot
workload:
  command: ./run
  repeats: many
"""


def faults(text):
    with pytest.raises(RecipeError) as caught:
        read_recipe(text, "r.yaml")
    return caught.value.message.splitlines()


def only_fault(text):
    messages = faults(text)
    assert len(messages) == 1, messages
    return messages[0]


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


def with_workload(*lines):
    return GOOD.partition("workload:")[0] + "workload:\n" + "".join(f"  {line}\n" for line in lines)


def test_five_faults_are_five_lines_in_the_order_of_their_lines():
    messages = faults(FIVE)
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in messages] == [
        "r.yaml:1 name",
        "r.yaml:3 instances.types[0]",
        "r.yaml:4 instances.count",
        "r.yaml:5 instances.markt",
        "r.yaml:8 workload.repeats",
    ]
    assert messages[3].endswith("unknown key; did you mean market?")
    assert "'Bad Name'" in messages[0]
    assert "'many'" in messages[4]


def test_a_key_written_twice_is_refused_with_both_lines():
    assert only_fault(GOOD + "name: again\n") == "r.yaml:6: name: written twice (first on line 1)"
    inner = changed("  types: [c7i.xlarge]\n", "  types: [c7i.xlarge]\n  types: [c6i.xlarge]\n")
    assert only_fault(inner) == "r.yaml:4: instances.types: written twice (first on line 3)"


def test_an_alias_is_refused_where_it_is_used():
    fault = only_fault("name: &n good\ninstances:\n  types: [*n]\nworkload: {command: x}\n")
    assert fault.startswith("r.yaml:3: aliases (*n)")


def test_a_second_document_is_refused():
    assert "not YAML" in only_fault(GOOD + "---\n" + GOOD)


def test_a_key_that_is_no_word_is_refused():
    assert "a key must be a plain word" in "\n".join(faults(GOOD + "? [a, b]\n: c\n"))


def test_deep_nesting_is_a_fault_and_no_crash():
    for text in ("a: " + "[" * 700, "a: " + "[" * 900 + "]" * 900, "a: " + "{b: " * 400 + "c" + "}" * 400):
        assert faults(text)


def test_a_control_character_is_a_fault():
    assert "not YAML" in only_fault("name: a\x07b\n")


@pytest.mark.parametrize("escape", [r'"\UFFFFFFFF"', r'"\ud800"', "%YAML " + "9" * 5000 + ".1\n---\na"])
def test_what_yaml_cannot_hold_is_a_fault(escape):
    assert faults(changed("python3 train.py", escape) if "%" not in escape else escape)


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ("name: good", "name: 1good", "1: name", "must be"),
        ("name: good", "name: " + "a" * 32, "1: name", "must be"),
        ("types: [c7i.xlarge]", "types: []", "2: instances", "name types"),
        ("types: [c7i.xlarge]", "types: {a: b.c}", "3: instances.types", "valid list"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  count: 1001", "4: instances.count", "1000"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  count: no", "4: instances.count", "'no'"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  count: [1]", "4: instances.count", "integer"),
        (
            "types: [c7i.xlarge]",
            "types: [c7i.xlarge]\n  count: {min: 3, max: 2}",
            "4: instances.count",
            "min (3) is more than max (2)",
        ),
        (
            "types: [c7i.xlarge]",
            "types: [c7i.xlarge]\n  count:\n    min: 1",
            "4: instances.count.max",
            "is missing",
        ),
        (
            "types: [c7i.xlarge]",
            "types: [c7i.xlarge]\n  count:\n    min: 1\n    max: 2\n    range: 3",
            "7: instances.count.range",
            "unknown key",
        ),
        ("name: good", "name: good\nenv: {A: 1}", "2: env", "did you mean workload.environment?"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  market: free", "4: instances.market", "'free'"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  image: ubuntu", "4: instances.image", "must be"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  user: Root", "4: instances.user", "must be"),
        ("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  disk_gib: 7", "4: instances.disk_gib", "8"),
        ("name: good", "name: good\nregion: mars", "2: region", "must be"),
        ("name: good", "name: good\ncloud: azure", "2: cloud", "'azure'"),
        (
            "name: good",
            "name: good\nsetup:\n  requirements: [a b]",
            "3: setup.requirements",
            "'a b' is no package",
        ),
        (
            "name: good",
            "name: good\nsetup:\n  requirements: a b",
            "3: setup.requirements",
            "'a b' is no package",
        ),
        ("name: good", "name: good\nbudget:\n  max_usd: 0", "3: budget.max_usd", "greater than 0"),
        ("name: good", "name: good\nbudget:\n  max_usd: nan", "3: budget.max_usd", "finite"),
        ("name: good", "name: good\nbudget:\n  max_usd: 1e99999", "3: budget.max_usd", "less than"),
        ("name: good", "name: good\nbudget:\n  max_hours: 721", "3: budget.max_hours", "720"),
        ("name: good", "name: good\nbudget:\n  max_hours: nan", "3: budget.max_hours", "nan"),
        ("name: good", "name: good\nkeep:\n  instances: perhaps", "3: keep.instances", "'perhaps'"),
    ],
)
def test_every_field_refuses_what_it_cannot_mean(old, new, where, says):
    fault = only_fault(changed(old, new))
    assert fault.startswith(f"r.yaml:{where}: ")
    assert says in fault


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["repeats: 1"], "name either a benchmark or a command"),
        (["command: x", "benchmark: y"], "name either a benchmark or a command"),
        (["command: x", "parameters: {a: b}"], "parameters belong to a benchmark"),
        (["benchmark: x", "final: true"], "final belongs to a command"),
        (["benchmark: x", "settings: [{name: a}]"], "settings belongs to a command"),
        (["command: x", "throughput: '['"], "not a regular expression"),
        (["command: x", "throughput: '(a){99999999999999999999}'"], "not a regular expression"),
        (["command: x", "throughput: abc"], "must have one group, the number; it has 0"),
        (["command: x", "facts: {loss: abc}"], "facts.loss must have one group, the value; it has 0"),
        (["command: x", "throughput: '(a)(b)'"], "it has 2"),
        (["command: x", "json_field: a", "reported: yes"], "json_field and reported exclude each other"),
        (["command: x", "final: yes"], "final needs throughput, json_field or reported"),
        (["benchmark: y", "reported: yes"], "reported belongs to a command"),
        (["command: x", "settings: [{name: a}, {name: a}]"], "two settings have the same name"),
        (["command: x", "settings: [{name: ''}]"], "at least 1 character"),
        (["command: x", "settings: [{name: a, environment: {1A: b}}]"], "must be"),
    ],
)
def test_a_workload_is_one_thing_and_complete(lines, says):
    fault = only_fault(with_workload(*lines))
    assert says in fault
    assert fault.startswith(("r.yaml:4: workload", f"r.yaml:{4 + len(lines)}: workload."))


def test_the_zones_must_lie_in_the_region():
    fault = only_fault(changed("types: [c7i.xlarge]", "types: [c7i.xlarge]\n  zones: [eu-west-1a]"))
    assert "zone eu-west-1a is not in region us-east-1" in fault


PIECES = (
    "\t|: |- |[|{|}|]|&a |*a|!!int |<<: |\"\\\\|'|>\n|? |%YAML |\n  |count: {|throughput: '(|max_usd: 1e|"
    "null|~|é|\x00|\ud800|\u2028|999999999999999999999999999999"
)
YAML_WORDS = st.sampled_from(
    [*GOOD.splitlines(keepends=True), *FIVE.splitlines(keepends=True), *PIECES.split("|")]
)


@settings(max_examples=400)
@given(st.one_of(st.text(), st.lists(YAML_WORDS, max_size=25).map("".join)))
def test_any_text_gives_a_recipe_or_a_recipe_error_that_can_be_printed(text):
    try:
        assert isinstance(read_recipe(text, "r.yaml"), Recipe)
    except RecipeError as error:
        messages = error.message.splitlines()
        assert messages
        error.message.encode("utf-8")


@settings(max_examples=200)
@given(st.integers(0, len(GOOD)), st.text(max_size=6))
def test_a_good_recipe_with_anything_put_into_it_is_still_read_or_refused(place, text):
    with contextlib.suppress(RecipeError):
        assert read_recipe(GOOD[:place] + text + GOOD[place:], "r.yaml").hash


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["command: x", "environment:", "  TOKEN:"], "r.yaml:7: workload.environment.TOKEN: has no value"),
        (["command: x", "env:", "  TOKEN:"], "r.yaml:7: workload.env.TOKEN: has no value"),
        (
            ["command: x", "settings:", "  - name: a", "    environment: {TOKEN: }"],
            "r.yaml:8: workload.settings[0].environment.TOKEN: has no value",
        ),
        (
            ["benchmark: quantization", "parameters: {rounds: }"],
            "r.yaml:6: workload.parameters.rounds: has no",
        ),
        (["command: x", "facts: {loss: }"], "r.yaml:6: workload.facts.loss: has no value"),
        (["command: x", "secrets: {TOKEN: }"], "r.yaml:6: workload.secrets.TOKEN: has no value"),
        (["command: x", "environment: {A: 1}", "env: {A: 2}"], "workload.env: means the same as environment"),
    ],
)
def test_a_name_without_a_value_is_a_fault(lines, fault):
    assert fault in only_fault(with_workload(*lines))


def test_a_tag_without_a_value_is_a_fault():
    assert 'tags.team: has no value; write "" for an empty text' in only_fault(GOOD + "tags:\n  team:\n")
