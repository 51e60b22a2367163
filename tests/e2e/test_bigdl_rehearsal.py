"""The recipe for BigDL, made small, on the local EC2: 423 MB and Java, so only where all is asked for."""

import json
import os

import pytest

from dlcloud.resources.texts import recipe_text
from tests.needs import needs

SMALL = {
    "cloud: aws": "cloud: local",
    "[c5.18xlarge, c7i.16xlarge, c7a.16xlarge]": "[c7i.xlarge]",
    "engine: [openvino, bigdl]": "engine: [bigdl]",
    "network: [vgg16, vgg19, digits]": "network: [tiny]",
    "max-seconds: 300": "max-seconds: 3",
}


@pytest.mark.timeout(1000)  # it installs 423 MB and starts four Java machines
@pytest.mark.skipif(os.environ.get("DLCLOUD_TEST_RECIPES") != "all", reason="DLCLOUD_TEST_RECIPES=all")
@needs("java")
def test_the_recipe_for_bigdl_runs_small_on_the_local_cloud(user):
    text = recipe_text("quantization-bigdl")[0]
    for of_aws, of_here in SMALL.items():
        assert of_aws in text
        text = text.replace(of_aws, of_here)
    path = user.home / "bigdl.yaml"
    path.write_text(text)
    out, err = user.begin("up", str(path), "--yes", "--output", "json").communicate(timeout=900)
    assert out, err
    rows = json.loads(out)["result"]["records"]
    assert {row["setting"] for row in rows} == {"bigdl fp32", "bigdl int8"}
    assert user.alive() == []
