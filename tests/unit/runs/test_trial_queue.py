"""Trials are handed out once, come back when an instance is lost, and end when none runs any more."""

import threading

from dlcloud.analysis.trials import number_trials
from dlcloud.runs.experiment_runner import TrialQueue

TRIALS = number_trials([{"a": str(number)} for number in range(3)])


def test_a_lost_trial_goes_first_and_a_failed_one_last():
    queue = TrialQueue(TRIALS)
    first = queue.take()
    queue.put_back(first)
    assert queue.take() == first
    queue.again(first)
    assert [queue.take().number for _ in range(3)] == [2, 3, 1]


def test_a_free_place_waits_for_a_trial_that_may_come_back():
    queue = TrialQueue(TRIALS[:1])
    trial = queue.take()
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    queue.put_back(trial)
    waiting.join()
    assert taken == [trial]


def test_stop_lets_all_places_go():
    queue = TrialQueue(TRIALS)
    queue.take()
    queue.stop()
    assert queue.take() is None


def test_many_places_take_each_trial_once():
    trials = number_trials([{"a": str(number)} for number in range(500)])
    queue, taken = TrialQueue(trials), []

    def serve():
        while (trial := queue.take()) is not None:
            if trial.number % 7 == 0 and trial.number not in taken:
                taken.append(trial.number)
                queue.put_back(trial)
                continue
            taken.append(trial.number)
            queue.end(trial)

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [trial.number for trial in trials] + [t.number for t in trials if t.number % 7 == 0]
    assert sorted(taken) == sorted(expected)


def test_a_trial_is_handed_out_early_only_if_others_have_enough():
    queue = TrialQueue(TRIALS)
    assert queue.take_early(leave=3) is None
    assert queue.take_early(leave=2) == TRIALS[0]
    assert queue.running == 1


def test_none_is_over_while_a_trial_runs_that_an_earlier_command_began():
    queue = TrialQueue([], running=[7])
    waiting = threading.Thread(target=queue.take)
    waiting.start()
    assert waiting.is_alive()
    queue.end(TRIALS[0].__class__(number=7, values={}))
    waiting.join()
