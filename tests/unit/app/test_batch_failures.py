"""Trials on AWS Batch that fail before they can report are given up, like those that report a failure."""

import pytest

from dlcloud.app.clusters.batch import BatchUp
from dlcloud.cloud.compute.batch_queues import BatchJob
from dlcloud.runs.experiment_runner import FIRST_FAILURES


@pytest.mark.parametrize(
    ("counts", "is_hopeless"),
    [
        ({"FAILED": FIRST_FAILURES, "RUNNABLE": 9000}, True),
        ({"FAILED": FIRST_FAILURES - 1, "RUNNABLE": 9000}, False),
        ({"FAILED": 50, "SUCCEEDED": 1, "RUNNABLE": 9000}, False),
    ],
)
def test_children_that_all_fail_without_a_result_end_the_array(counts, is_hopeless):
    job = BatchJob(counts=counts, is_over=False, reason="")
    assert bool(BatchUp._is_hopeless(None, job, [])) is is_hopeless
