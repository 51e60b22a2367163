"""XGBoost's and LightGBM's `train`: saved after a tree, and resumed with the trees that there are.

Neither of them saves its random numbers. With subsample, bagging or random columns the trees after an
interruption are other ones, and the hook says so. What evaluations and early stopping have counted continues.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .states import NOT_RESUMED, States, dump, fields_of, load, restore_fields, say

MODEL, REST = "model.ubj", "rest.pt"
RANDOM = (
    "subsample",
    "colsample_bytree",
    "colsample_bylevel",
    "colsample_bynode",
    "bagging_fraction",
    "feature_fraction",
    "feature_fraction_bynode",
)


def patch(module: ModuleType) -> None:
    """Have `train` resume; the estimators of scikit-learn's kind call it, too."""
    patcher = _patch_xgboost if module.__name__.startswith("xgboost") else _patch_lightgbm
    patcher(module)


def _warn_random(name: str, parameters: Mapping[str, Any]) -> None:
    drawn = [key for key in RANDOM if parameters.get(key) not in {None, 1}]
    if drawn:
        say(
            f"{name} does not save its random numbers: from here on {drawn[0]} draws others than without an "
            "interruption"
        )


def _settings(parameters: Mapping[str, Any], arguments: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    return {**{f"params.{key}": value for key, value in parameters.items()}, **arguments, "rows": rows}


def _patch_xgboost(module: Any) -> None:
    train = module.train
    signature = inspect.signature(train)

    class Saving(module.TrainingCallback):  # type: ignore[misc]
        """Saves after each tree, if it is due, what all other callbacks know by then."""

        def __init__(self, states: States, others: list[Any]) -> None:
            self.states, self.others = states, others

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if self.states.is_due(epoch + 1):
                fields = [fields_of(other) for other in self.others]
                rest = {"log": evals_log, "callbacks": fields, "config": model.save_config()}

                def write(folder: Path) -> None:
                    model.save_model(folder / MODEL)
                    dump(folder / REST, rest)

                self.states.save(epoch + 1, write)
            return False

    def booster_of(parameters: Any, sets: list[Any], file: str | None) -> Any:
        return module.Booster(parameters, sets, model_file=file)

    @functools.wraps(train)
    def resuming_train(*arguments: Any, **named: Any) -> Any:
        import xgboost  # noqa: PLC0415 - imported by the program

        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        parameters = dict(given["params"])
        if parameters.get("booster") == "dart" or xgboost.collective.is_distributed():
            say(NOT_RESUMED.format("XGBoost with dart or several workers"))
            return train(*arguments, **named)
        rows = [given["dtrain"].num_row(), given["dtrain"].num_col()]
        names = ("num_boost_round", "early_stopping_rounds", "maximize")
        states = States(
            "xgboost",
            version=xgboost.__version__,
            settings=_settings(parameters, {name: given[name] for name in names}, rows),
        )
        callbacks = list(given["callbacks"] or [])
        if given["verbose_eval"]:
            period = 1 if given["verbose_eval"] is True else given["verbose_eval"]
            callbacks.append(xgboost.callback.EvaluationMonitor(period=period))
        if given["early_stopping_rounds"]:
            callbacks.append(
                xgboost.callback.EarlyStopping(
                    rounds=given["early_stopping_rounds"], maximize=given["maximize"]
                )
            )
        saving = Saving(states, list(callbacks))
        given.update(callbacks=[*callbacks, saving], verbose_eval=False, early_stopping_rounds=None)
        with states:
            state = states.newest()
            if state is None:
                outcome = train(*bound.args, **bound.kwargs)
            else:
                _warn_random("XGBoost", parameters)
                outcome = resumed(given, load(state / REST), str(state / MODEL), states.step)
            states.finish()
        return outcome

    def resumed(given: Mapping[str, Any], rest: Mapping[str, Any], model: str, done: int) -> Any:
        """Do what `train` does, from a tree on."""
        evals = list(given["evals"] or [])
        booster = booster_of(given["params"], [given["dtrain"], *(data for data, _ in evals)], model)
        container = module.CallbackContainer(
            given["callbacks"], metric=given["custom_metric"], output_margin=callable(given["obj"])
        )
        booster = container.before_training(booster)
        booster.load_config(rest["config"])  # what callbacks have set, such as the learning rate
        for callback, fields in zip(given["callbacks"], rest["callbacks"], strict=False):
            restore_fields(callback, fields)
        container.history.update(rest["log"])
        for number in range(done, given["num_boost_round"]):
            if container.before_iteration(booster, number, given["dtrain"], evals):
                break
            booster.update(given["dtrain"], iteration=number, fobj=given["obj"])
            if container.after_iteration(booster, number, given["dtrain"], evals):
                break
        booster = container.after_training(booster)
        if given["evals_result"] is not None:
            given["evals_result"].update(container.history)
        return booster.reset()

    module.train = resuming_train


class _Shifted:
    """A callback of LightGBM that sees one training, although it began again in between."""

    def __init__(self, callback: Any, fields: Mapping[str, Any] | None) -> None:
        self.callback, self.fields = callback, fields  # as they were saved; None in a training that begins
        self.order = getattr(callback, "order", 0)
        self.before_iteration = getattr(callback, "before_iteration", False)

    def __call__(self, env: Any) -> None:
        fields, self.fields = self.fields, None
        if fields is not None:
            if hasattr(self.callback, "_init"):  # of LightGBM's own, as in their first call
                self.callback._init(env)
            restore_fields(self.callback, fields)
        replace = env._replace if hasattr(env, "_replace") else functools.partial(dataclasses.replace, env)
        self.callback(replace(begin_iteration=0))


def _patch_lightgbm(module: Any) -> None:
    train = module.train
    signature = inspect.signature(train)

    @functools.wraps(train)
    def resuming_train(*arguments: Any, **named: Any) -> Any:
        import lightgbm  # noqa: PLC0415 - imported by the program

        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        parameters = dict(given["params"])
        rounds = _popped(lightgbm, parameters, "num_iterations", given["num_boost_round"])
        stopping = _popped(lightgbm, parameters, "early_stopping_round", 0)
        reason = next((key for key in ("dart", "rf") if key in map(str, parameters.values())), "")
        if given["init_model"] is not None:
            reason = "init_model"
        if reason or parameters.get("num_machines", 1) != 1:
            say(NOT_RESUMED.format(f"LightGBM with {reason or 'several machines'}"))
            return train(*arguments, **named)
        settings = _settings(
            parameters, {"rounds": rounds, "early_stopping": stopping}, str(type(given["train_set"].data))
        )
        states = States("lightgbm", version=lightgbm.__version__, settings=settings)
        callbacks = list(given["callbacks"] or [])
        for number, callback in enumerate(callbacks):
            if not hasattr(callback, "order"):
                callback.order = number - len(callbacks)
        if stopping and stopping > 0:
            verbosity = _popped(lightgbm, dict(parameters), "verbosity", 1)
            callbacks.append(
                lightgbm.early_stopping(
                    stopping,
                    first_metric_only=bool(parameters.get("first_metric_only", False)),
                    min_delta=parameters.get("early_stopping_min_delta", 0.0),
                    verbose=verbosity > 0,
                )
            )
        with states:
            state = states.newest()
            saved: list[Any] = [None] * len(callbacks)
            if state is not None:
                _warn_random("LightGBM", parameters)
                saved = load(state / REST)
                given["init_model"] = lightgbm.Booster(model_file=str(state / MODEL))

            def save(env: Any) -> None:
                if states.is_due(env.iteration + 1):
                    rest = [fields_of(callback) for callback in callbacks]

                    def write(folder: Path) -> None:
                        env.model.save_model(str(folder / MODEL), num_iteration=-1)
                        dump(folder / REST, rest)

                    states.save(env.iteration + 1, write)

            save.order = 1 << 20  # type: ignore[attr-defined]  # after all others
            given["params"] = parameters
            given["num_boost_round"] = rounds - states.step
            given["callbacks"] = [*map(_Shifted, callbacks, saved), save]
            outcome = train(*bound.args, **bound.kwargs)
            states.finish()
        return outcome

    module.train = resuming_train


def _popped(lightgbm: Any, parameters: dict[str, Any], name: str, default: Any) -> Any:
    """Take a parameter out, whichever of its names it has."""
    names = sorted(lightgbm.basic._ConfigAliases.get(name), key=lambda alias: alias != name)
    values = [parameters.pop(alias) for alias in names if alias in parameters]
    return values[0] if values else default
