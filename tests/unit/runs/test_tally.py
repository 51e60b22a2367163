"""The tally of an experiment, and the work that is done beside it."""

import threading

import pytest

from dlcloud.analysis.trials import TrialState, TrialStatus, number_trials
from dlcloud.runs.experiment_runner import Background, TrialTally

TRIALS = number_trials([{"a": str(number)} for number in range(3)])


def status(trial, state, value=None):
    return TrialStatus(trial=trial, state=state, value=value)


def test_trials_are_counted_once_in_the_state_that_they_have_now():
    tally = TrialTally([status(trial, TrialState.WAITING) for trial in TRIALS], maximize=False)
    assert tally.mean_s is None
    tally.put(status(TRIALS[0], TrialState.DONE, 3.0), 1.0)
    tally.put(status(TRIALS[1], TrialState.WAITING), 2.0)
    tally.put(status(TRIALS[1], TrialState.DONE, 2.0), 3.0)
    assert tally.count(TrialState.DONE) == 2
    assert tally.count(TrialState.WAITING, TrialState.RUNNING) == 1
    assert tally.best.value == 2.0
    assert tally.mean_s == 2.0
    assert [one.trial.number for one in tally.statuses()] == [1, 2, 3]


def test_work_is_done_one_piece_after_the_other_and_its_error_is_raised():
    background, go, done = Background(), threading.Event(), []
    background.begin(go.wait)
    go.set()
    background.begin(lambda: done.append(1))
    background.begin(lambda: 1 / 0)
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.wait()
