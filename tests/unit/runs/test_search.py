"""A search chooses what Optuna alone chooses with the same seed, and goes on from stored trials."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from dlcloud.analysis.trials import TrialState, TrialStatus
from dlcloud.recipe.experiment import Search
from dlcloud.runs.search import OptunaSearch

SPACE = {
    "x": {"low": -10, "high": 10},
    "rate": {"low": 1e-5, "high": 1, "log": True},
    "layers": {"low": 1, "high": 8, "integer": True},
}
DISTRIBUTIONS = {
    "x": FloatDistribution(-10, 10),
    "rate": FloatDistribution(1e-5, 1, log=True),
    "layers": IntDistribution(1, 8),
}
SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
}
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def loss(values):
    return (float(values["x"]) - 2) ** 2 + abs(float(values["rate"]) - 0.01) + int(values["layers"])


def search_of(trials, **other):
    return Search(space=SPACE, trials=trials, **other)


def run_search(search, most=100):
    ended = []
    while len(ended) < most and (trial := search.ask()) is not None:
        ended.append(TrialStatus(trial=trial, state=TrialState.DONE, value=loss(trial.values)))
        search.tell(ended[-1])
    return ended


@pytest.mark.parametrize("sampler", [*SAMPLERS])
def test_it_finds_what_optuna_alone_finds_with_the_same_seed(sampler):
    ended = run_search(OptunaSearch(search_of(25, sampler=sampler, seed=7), maximize=False))
    study = optuna.create_study(direction="minimize", sampler=SAMPLERS[sampler](seed=7))
    for _ in range(25):
        trial = study.ask(DISTRIBUTIONS)
        study.tell(trial, loss(trial.params))
    assert [status.value for status in ended] == [trial.value for trial in study.trials]
    assert min(status.value for status in ended) == study.best_value


def test_it_goes_on_from_stored_trials_to_the_number_of_the_recipe():
    ended = run_search(OptunaSearch(search_of(12), maximize=False), most=5)
    lost = TrialStatus(trial=ended[4].trial, state=TrialState.FAILED)
    rest = run_search(OptunaSearch(search_of(12), maximize=False, earlier=[*ended[:4], lost]))
    assert [status.trial.number for status in rest] == [*range(6, 13)]
    values = [status.trial.key for status in (*ended, *rest)]
    assert len(set(values)) == 12


def test_a_trial_without_a_metric_is_told_as_failed():
    search = OptunaSearch(search_of(2), maximize=True)
    search.tell(TrialStatus(trial=search.ask(), state=TrialState.FAILED))
    search.tell(TrialStatus(trial=search.ask(), state=TrialState.DONE, value=None))
    assert search.ask() is None


def test_choices_are_texts():
    search = OptunaSearch(
        Search(space={"kind": {"choices": ["relu", "1"]}}, trials=4, sampler="random"), maximize=True
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(4):
        expected = study.ask({"kind": CategoricalDistribution(["relu", "1"])}).params["kind"]
        assert search.ask().values == {"kind": expected}


def test_stored_trials_of_another_space_are_left_out():
    old = run_search(OptunaSearch(search_of(3), maximize=False))
    narrow = Search(space={"x": {"low": 50, "high": 60}}, trials=5)
    assert len(run_search_of_x(OptunaSearch(narrow, maximize=False, earlier=old))) == 2


def run_search_of_x(search):
    taken = []
    while (trial := search.ask()) is not None:
        taken.append(trial)
    return taken


def test_it_ends_trials_that_optuna_alone_ends_and_goes_on_from_them():
    search = OptunaSearch(search_of(30, sampler="random", pruner="median"), maximize=False)
    pruner = optuna.pruners.MedianPruner()
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="minimize", sampler=sampler, pruner=pruner)
    ended, alone = [], []
    for _ in range(30):
        trial, asked = search.ask(), study.ask(DISTRIBUTIONS)
        value = loss(trial.values)
        asked.report(loss(asked.params), 1)
        is_behind = search.is_behind(trial.number, 1, value)
        alone.append(asked.should_prune())
        state = optuna.trial.TrialState.PRUNED if alone[-1] else None
        study.tell(asked, None if alone[-1] else loss(asked.params), state=state)
        ended.append(
            TrialStatus(
                trial=trial,
                state=TrialState.PRUNED if is_behind else TrialState.DONE,
                value=None if is_behind else value,
                intermediate=((1, value),),
            )
        )
        search.tell(ended[-1])
    pruned = [status.state is TrialState.PRUNED for status in ended]
    assert pruned == alone
    assert 5 < sum(pruned) < 25
    again = OptunaSearch(search_of(31, sampler="random", pruner="median"), maximize=False, earlier=ended)
    assert again.is_behind(again.ask().number, 1, 1e9)
