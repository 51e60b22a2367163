"""The progress of what runs: steps, time left and stalls from its records."""

from datetime import timedelta

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.analysis.run_progress import progress_of, progress_of_trials
from dlcloud.report.cells import describe_progress
from tests.fakes.samples import THEN, run


def steps(count, total=None, **last):
    yield {"record": "start", "settings": {"steps": total}}
    for number in range(1, count + 1):
        time = (THEN + timedelta(seconds=2 * number)).isoformat()
        yield {"record": "step", "step": number, "world_size": 3, "time": time, **last}


def test_steps_give_speed_workers_and_the_time_left():
    progress = progress_of(steps(40, 100), THEN + timedelta(seconds=81))
    assert (progress.done, progress.total, progress.workers) == (40, 100, 3)
    assert (progress.step_s, progress.left_s, progress.is_stalled) == (2.0, 120.0, False)
    assert describe_progress(progress) == "40 of 100 steps, 3 worker(s), 2 s a step, about 2 min left"


def test_a_step_that_takes_far_longer_than_usual_is_a_stall():
    progress = progress_of(steps(40, 100), THEN + timedelta(seconds=80 + 395))
    assert progress.is_stalled
    assert "STALLED: no step for 6.58 min" in describe_progress(progress)
    assert not progress_of(steps(40, 100), THEN + timedelta(seconds=100)).is_stalled


def test_a_benchmark_reports_its_cases():
    records = [
        {"record": "progress", "message": "vgg16: int8", "done": 1, "total": 4, "remaining_s": 300.0},
    ]
    progress = progress_of(records, THEN)
    assert describe_progress(progress) == "1 of 4 cases, about 5 min left: vgg16: int8"


@pytest.mark.parametrize("record", [{"record": "step"}, {"record": "start", "settings": 3}, {}, {"step": 2}])
def test_records_without_progress_are_none(record):
    assert progress_of([record], THEN) is None


def test_a_broken_time_is_now():
    assert progress_of(steps(3, time="yesterday"), THEN).silent_s == 0


def test_an_experiment_says_which_trials_are_done_and_which_run():
    runs = [
        run("r-1", state=RunState.DONE, experiment="e", trial=1, trial_values='{"lr": "0.1"}'),
        run("r-2", state=RunState.FAILED, experiment="e", trial=2, trial_values='{"lr": "0.3"}'),
        run("r-3", state=RunState.RUNNING, experiment="e", trial=2, trial_values='{"lr": "0.3"}'),
        run("r-4", state=RunState.RUNNING, experiment="e", trial=3, trial_values="torn"),
    ]
    text = describe_progress(progress_of_trials(runs))
    assert text == "1 trials done: 1 run(s) failed; running lr=0.3, trial 3"
