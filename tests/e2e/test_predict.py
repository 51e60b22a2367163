"""`dlcloud bench --predict` from its choice of types to its predictions, on the local EC2."""

import pytest

NAMED = ("c7i.xlarge", "c6a.4xlarge", "r7g.8xlarge", "m5.large", "c7i.large")


@pytest.mark.long
def test_three_types_are_measured_and_a_rehearsal_predicts_nothing(user):
    recipe = user.recipe("echo images/sec: 5", name="own.yaml")
    types = [word for name in NAMED if not name.startswith("r7g") for word in ("-i", name)]
    words = ("bench", "--predict", *types, "--recipe", recipe, "--parameters", "25.6M")
    result = user.json(*words)["result"]
    measured = {row["instance_type"] for row in result["records"]}
    assert len(measured) == 3
    assert measured < set(NAMED)
    assert result["predictions"] == []
    (refused,) = result["not_predicted"]
    assert "only rehearsed" in refused["reason"]
    assert user.alive() == []
    shown = user.run("predict").stdout
    assert "not predicted: it was only rehearsed" in shown
    assert user.run("predict", "--tokens", "5", expect=2).stderr
    assert "nothing to race" in user.run(*words, "--race", expect=2).stderr
