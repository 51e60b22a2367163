"""Uploads of checkpoints that ended with their instances: when they are aborted, and what a denial says."""

from dlcloud.launch.data_access import abort_uploads, prepare_access
from dlcloud.model.errors import CredentialsError
from dlcloud.model.events import Warned
from tests.fakes.cloud import Failure
from tests.fakes.samples import RECIPE, recipe

URI = "s3://bucket/runs"
STORED = recipe(
    f"name: stored\ncheckpoints: {URI}\ninstances: {{types: [c7i.large]}}\n"
    "workload: {command: python3 train.py, elastic: {}}\n"
)


def test_they_are_aborted_before_the_first_launch_and_not_beside_workers(world):
    world.cloud.uploads[URI] = 2
    prepare_access(world.launcher, STORED)
    assert world.cloud.uploads == {}
    assert any("aborted 2 unfinished upload(s)" in str(event) for event in world.events)
    world.cloud.uploads[URI] = 1
    prepare_access(world.launcher, STORED)
    assert world.cloud.uploads == {URI: 1}, "a worker of this cluster may be uploading"


def test_a_recipe_without_checkpoints_asks_for_none(world):
    abort_uploads(world.launcher, recipe(RECIPE))
    assert world.events == []


def test_a_denial_is_a_warning_that_names_the_lifecycle_rule(world):
    world.cloud.failures = [Failure("buckets.abort_uploads", CredentialsError("denied"))]
    abort_uploads(world.launcher, STORED)
    (warning,) = (event for event in world.events if isinstance(event, Warned))
    assert "AbortIncompleteMultipartUpload" in warning.message
