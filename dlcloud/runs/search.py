"""The trials of a search, chosen by Optuna from the metrics of those that have ended.

Optuna is in the extra `search`; only a recipe with a search imports this module.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    SuccessiveHalvingPruner,
)
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.trial import TrialState as OptunaState

from dlcloud.analysis.trials import Trial, TrialState, TrialStatus
from dlcloud.recipe.experiment import Range, Search

SAMPLERS: Mapping[str, type[BaseSampler]] = {
    "tpe": TPESampler,
    "random": RandomSampler,
    "cmaes": CmaEsSampler,
}


PRUNERS: Mapping[str, type[BasePruner]] = {
    "none": NopPruner,
    "median": MedianPruner,
    "halving": SuccessiveHalvingPruner,
    "hyperband": HyperbandPruner,
}


class OptunaSearch:
    """Asks Optuna for values and tells it the metrics; safe to use from several threads.

    Args:
        search: The recipe's.
        maximize: Whether the largest metric is the best.
        earlier: The trials that earlier commands have begun; those with a metric are added to its study.
    """

    def __init__(self, search: Search, *, maximize: bool, earlier: Iterable[TrialStatus] = ()) -> None:
        earlier = list(earlier)
        self._space = {name: _distribution(one) for name, one in search.space.items()}
        # The same seed would choose the first trials again.
        sampler: Any = SAMPLERS[search.sampler]
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        direction = "maximize" if maximize else "minimize"
        self._study = optuna.create_study(
            direction=direction,
            sampler=sampler(seed=search.seed + len(earlier)),
            pruner=PRUNERS[search.pruner](),
        )
        self._most = search.trials
        self._lock = threading.Lock()
        self._asked: dict[int, optuna.Trial] = {}
        self._last = max((status.trial.number for status in earlier), default=0)
        self._begun = len(earlier)
        for status in earlier:
            self._add(status)

    def ask(self) -> Trial | None:
        """Return a further trial; None once there are as many as the recipe says."""
        with self._lock:
            if self._begun >= self._most:
                return None
            self._begun += 1
            self._last += 1
            asked = self._study.ask(self._space)
            self._asked[self._last] = asked
            values = {name: _text(asked.params[name]) for name in self._space}
            return Trial(number=self._last, values=values)

    def is_behind(self, number: int, step: int, value: float) -> bool:
        """Tell Optuna what the metric of a trial is so far; True if the trial is to be ended."""
        with self._lock:
            asked = self._asked.get(number)
            if asked is None:
                return False
            asked.report(value, step)
            return bool(asked.should_prune())

    def tell(self, status: TrialStatus) -> None:
        """Tell Optuna a trial's metric, that it was ended, or that it has none."""
        with self._lock:
            asked = self._asked.pop(status.trial.number, None)
            if asked is None:
                self._add(status)
            elif status.state is TrialState.PRUNED:
                self._study.tell(asked, state=OptunaState.PRUNED)
            elif status.value is None:
                self._study.tell(asked, state=OptunaState.FAIL)
            else:
                self._study.tell(asked, status.value)

    def _add(self, status: TrialStatus) -> None:
        """Add a trial of an earlier command, unless its values are none of this space."""
        is_pruned = status.state is TrialState.PRUNED
        if not is_pruned and (status.state is not TrialState.DONE or status.value is None):
            return
        values = status.trial.values
        if values.keys() != self._space.keys():
            return
        try:
            params = {name: _param(self._space[name], values[name]) for name in self._space}
            frozen = optuna.trial.create_trial(
                value=status.value,
                params=params,
                distributions=self._space,
                intermediate_values=dict(status.intermediate),
                state=OptunaState.PRUNED if is_pruned else OptunaState.COMPLETE,
            )
        except ValueError:  # the space of the recipe has changed since
            return
        self._study.add_trial(frozen)


def _distribution(one: Range) -> BaseDistribution:
    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    if one.low is None or one.high is None:
        raise ValueError("a range has a low and a high")
    if one.integer:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _param(distribution: BaseDistribution, text: str) -> str | int | float:
    if isinstance(distribution, IntDistribution):
        return int(text)
    return float(text) if isinstance(distribution, FloatDistribution) else text
