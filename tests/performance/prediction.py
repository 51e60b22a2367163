"""How well throughput is predicted on types and for models that the predictor never saw, beside the goals.

    python tests/performance/prediction.py FOLDER [--repository FOLDER] [--undescribed]
    python tests/performance/prediction.py FOLDER --repository FOLDER --programs [--kept-back] [--types 8]

FOLDER has the files of SpareCores/sc-inspector-data that `type_table.py` reads. Families are split into
four parts by the SHA-256 of their names. For each part and each model, the table is completed without that
part and that model; each test of the model is then measured on three types that the predictor chooses of
the others, and predicted on all. `--undescribed` keeps from the predictor what a test is (size of the
model, tokens): the case of one's own job. `--repository`, a checkout of SpareCores/sc-inspector-data, adds
references of other programs. `--programs` predicts their tests, each program left out with a part of the
families, or, with `--kept-back`, on the families that FOLDER has nothing of and that no constant was chosen
on. Simple rules are next to it. Intervals are scaled by the errors of the other models. `--repeats` says
how far samples of one run are apart, and with `--repository` types of the same hardware. Needs NumPy.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import numpy as np
from common import parser_of, part_of, usd_by_type, verdict
from type_table import (
    FEWEST_TYPES,
    Data,
    complete,
    given_families,
    read_data,
    read_rows,
    read_traits,
)

from dlcloud.prediction.measured_types import (
    RULE,
    Reference,
    Traits,
    TypeTable,
)
from dlcloud.prediction.offers import race_of
from dlcloud.prediction.predictor import (
    MANY_CORES,
    Belief,
    Calibration,
    Measurement,
    choose_types,
    learn,
    predict,
)
from dlcloud.prediction.resemblance import resemblances
from dlcloud.prediction.rules import BY_PASSMARK, PASSMARK, rule_levels

PARTS = 4
RACED = (3, 8, 12, 24)
FEWEST_HELD = 20
FEWEST_SAMPLES = 3
SIZES = (2, 8, 32, 64, 1000)
UNIT = Calibration(described=(1.0, 1.0), unsized=(1.0, 1.0), programs=(1.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One test, predicted: errors and standard deviations of logarithms, and what the choice cost."""

    model: str
    test: str
    names: list[str]
    errors: np.ndarray
    deviations: np.ndarray
    held: np.ndarray
    belief: Belief
    """After the measurements."""
    excess: float = 0.0
    raced: dict[int, tuple[float, float]] = field(default_factory=dict)
    rules: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of each simple rule: the median error; the excess of what it names, and of the best of its first 8."""


_CHOSEN: dict[tuple[int, Reference | None, frozenset[str]], tuple[TypeTable, list[str]]] = {}
"""Once for all tests of a table, which is kept so that its id stays its own."""


def predict_test(
    data: Data,
    table: TypeTable,
    j: int,
    prices: dict[str, float],
    *,
    is_held: Callable[[Traits], bool],
    description: Reference | None,
    count: int = 3,
    by_rule: dict[str, dict[str, float]] | None = None,
) -> Outcome:
    levels = dict(zip(data.names, data.levels[j], strict=True))
    ran = {name: level for name, level in levels.items() if not np.isnan(level)}
    belief = Belief(table=table, resemblances=resemblances(table.references, description))
    held = {one.name for one in data.traits if is_held(one)}
    open_to = {name: prices[name] for name in ran if name in prices and name not in held}
    open_to = open_to or {name: prices[name] for name in ran if name in prices}
    key = id(table), description, frozenset(open_to)
    if key not in _CHOSEN:
        _CHOSEN[key] = table, choose_types(belief, open_to, list(table.rows), count)
    chosen = _CHOSEN[key][1]
    measurements = [Measurement(instance_type=name, throughput=exp(ran[name])) for name in chosen]
    belief = learn(belief, measurements)
    tests_of_model = [i for i, model in enumerate(data.models) if model == data.models[j]]
    began = ~np.isnan(data.levels[tests_of_model]).all(axis=0)
    # Slow language models were cut off; of other programs a missing test failed, and says nothing of speed.
    is_cut = data.references[j].kind.is_language
    cut = [n for n, b in zip(data.names, began, strict=True) if is_cut and b and n not in ran]
    estimates = {one.instance_type: one for one in predict(belief, [*ran, *cut], UNIT)}
    names = [name for name in ran if name not in chosen]
    errors = np.array([log(estimates[name].throughput) - ran[name] for name in names])
    deviations = np.array([log(estimates[name].high / estimates[name].throughput) for name in names])
    outcome = Outcome(
        model=data.models[j],
        test=data.references[j].name,
        names=names,
        errors=errors,
        deviations=deviations,
        held=np.array([name in held for name in names]),
        belief=belief,
    )
    costs = {n: prices[n] / exp(ran[n]) for n in ran if n in prices and not n.startswith("t")}
    # A type whose test was cut off costs its price at the slowest speed that was kept, at least.
    costs |= {n: prices[n] / exp(data.cut_offs[j]) for n in cut if n in prices and not n.startswith("t")}
    predicted = {name: estimates[name].throughput for name in costs}
    _, race = race_of(
        belief,
        {name: prices[name] for name in costs},
        predicted,
        (by_rule or {}).get(BY_PASSMARK),
        max(RACED),
    )
    cheapest = sorted(costs, key=lambda name: prices[name] / predicted[name])
    outcome = _with_costs(outcome, costs, prices, [*dict.fromkeys([*race, *cheapest])], chosen)
    rules = {}
    for name, of_type in (by_rule or {}).items():
        level = fmean(ran[one] - of_type[one] for one in chosen)
        errors = [abs(exp(level + of_type[one] - ran[one]) - 1) for one in names]
        ranked = sorted(costs, key=lambda one: prices[one] / exp(of_type[one]))
        best = [min(costs[one] for one in ranked[:most]) / min(costs.values()) - 1 for most in (1, 8)]
        rules[name] = (float(np.median(errors)), *best)
    return replace(outcome, rules=rules)


def _with_costs(outcome, costs, prices, ranked, chosen) -> Outcome:
    best = min(costs.values())
    whole = sum(prices[name] for name in costs)
    raced = {}
    for most in RACED:
        names = ranked[:most]
        spent = sum(prices[name] for name in {*chosen, *names}) / whole
        raced[most] = (min(costs[name] for name in names) / best - 1, spent)
    return replace(outcome, excess=costs[ranked[0]] / best - 1, raced=raced)


def calibration(outcomes: Iterable[Outcome]) -> Calibration:
    """Return the 90th percentiles of the scaled errors, each value weighing alike."""
    scores: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for one in outcomes:
        ratios = np.abs(one.errors) / np.maximum(one.deviations, 1e-6)
        for name, score in zip(one.names, ratios, strict=True):
            kind = "described" if one.belief.is_described else "unsized"
            scores[kind, one.belief.table.rows[name].traits.processor.vendor == "arm"].append(float(score))
    ends = {key: float(np.quantile(some, 0.9)) for key, some in scores.items()}
    kinds = {kind for kind, _ in ends}
    return Calibration(**{kind: (ends[kind, False], ends[kind, True]) for kind in kinds})


def relative(outcome: Outcome) -> np.ndarray:
    return np.abs(np.exp(outcome.errors) - 1)


def print_repeats(folder: Path) -> None:
    """Print how far each sample is from the median of the others of its run: no prediction does better."""
    traits = {one.name: one for one in read_traits(folder)}
    errors: dict[str, list[float]] = defaultdict(list)
    for row in read_rows(folder, "llm.csv.gz"):
        rates = [float(row[f"tokens_s_{i}"]) for i in range(1, 6) if row[f"tokens_s_{i}"]]
        if row["gpu"] or row["type"] not in traits or len(rates) < FEWEST_SAMPLES:
            continue
        processor, model = traits[row["type"]].processor, row["model"].split("-")[0]
        for i, rate in enumerate(rates):
            error = abs(median([*rates[:i], *rates[i + 1 :]]) / rate - 1)
            for group in ("", processor.vendor, model, f"{model} on {processor.design}"):
                errors[group].append(error)
    for group, some in sorted(errors.items()):
        print(
            f"{group or 'all samples':16} {len(some):6}: median {median(some):5.1%} mean {fmean(some):6.1%}"
        )


def print_twins(data: Data, given: set[str]) -> None:
    """Print how far types of kept-back families are from others of the same processor, cores and sockets."""
    twins: dict[tuple, list[int]] = defaultdict(list)
    for i, one in enumerate(data.traits):
        twins[one.processor, one.cores, one.threads_per_core, one.sockets].append(i)
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for j, reference in enumerate(data.references):
        if reference.kind.is_language or reference.program == RULE:
            continue
        for some in twins.values():
            ran = [i for i in some if not np.isnan(data.levels[j][i])]
            for i in ran if len(ran) > 1 else ():
                if data.traits[i].family not in given:
                    middle = median(data.levels[j][other] for other in ran if other != i)
                    errors[reference.program, j].append(abs(exp(middle - data.levels[j][i]) - 1))
    for program in ("", *sorted({program for program, _ in errors})):
        tests = [some for (name, _), some in errors.items() if program in {name, ""}]
        middles, means = [median(some) for some in tests], [fmean(some) for some in tests]
        print(f"twins, {program or 'all'}: median {fmean(middles):.1%} mean {fmean(means):.1%}")


def print_errors(title: str, outcomes: Sequence[Outcome], *, held: bool) -> None:
    chosen = [(relative(o)[o.held] if held else relative(o)) for o in outcomes]
    chosen = [errors for errors in chosen if len(errors)]
    middle = np.mean([np.median(errors) for errors in chosen])
    mean = np.mean([np.mean(errors) for errors in chosen])
    print(
        f"{title:42} median {middle:6.1%} (goal 10 %: {verdict(middle <= 0.10)})"
        f"  mean {mean:6.1%} (goal 15 %: {verdict(mean <= 0.15)})"
    )


def print_intervals(outcomes: Sequence[Outcome], scales: dict[str, Calibration]) -> None:
    inside: dict[str, list[bool]] = defaultdict(list)
    for one in outcomes:
        hits = _inside(one, scales[one.model])
        for name, hit, held in zip(one.names, hits, one.held, strict=True):
            inside["all"].append(bool(hit))
            inside[f"model {one.model}"].append(bool(hit))
            if held:
                inside["left-out families"].append(bool(hit))
                inside["family " + name.split(".")[0]].append(bool(hit))
    families = [np.mean(h) for k, h in inside.items() if k.startswith("family ") and len(h) >= FEWEST_HELD]
    for key in ("all", "left-out families", *sorted(k for k in inside if k.startswith("model "))):
        if inside[key]:
            share = float(np.mean(inside[key]))
            print(
                f"90 % intervals, {key:36} hold {share:6.1%}"
                f" (goal 85 to 95 %: {verdict(0.85 <= share <= 0.95)})"
            )
    within = sum(0.85 <= share <= 0.95 for share in families)
    if families:
        print(
            f"families whose intervals hold 85 to 95 %: {within} of {len(families)} (goal: all:"
            f" {verdict(within == len(families))}); below 85 %: {sum(share < 0.85 for share in families)}"
        )


def print_types(outcomes: Sequence[Outcome], scales: dict[str, Calibration], *, held: bool) -> None:
    """Print errors and intervals by cores, processor and family of the type, each value weighing alike."""
    groups = defaultdict(list)
    for one in outcomes:
        rows = zip(one.names, relative(one), _inside(one, scales[one.model]), one.held, strict=True)
        for name, error, hit, is_held in rows:
            if is_held or not held:
                of_type = one.belief.table.rows[name].traits
                size = next(most for most in SIZES if of_type.cores <= most)
                for group in (
                    "",
                    f"at most {size} cores",
                    of_type.processor.design,
                    f"family {of_type.family}",
                ):
                    groups[group].append((error, hit))
    for group, values in sorted(groups.items()):
        errors, hits = zip(*values, strict=True)
        print(
            f"{group or 'all values':20} {len(values):6}: {np.median(errors):6.1%} ({np.mean(errors):6.1%});"
            f" {np.mean(hits):4.0%}"
        )


def _inside(outcome: Outcome, scale: Calibration) -> np.ndarray:
    """Return whether each value is within its interval."""
    factors = [scale.scale(outcome.belief, name) for name in outcome.names]
    return np.abs(outcome.errors) <= outcome.deviations * factors


def print_choices(outcomes: Sequence[Outcome]) -> None:
    unique = list({(one.model, one.test): one for one in outcomes}.values())
    named = {"named after three types": [(one.excess, 0.0) for one in unique]}
    named |= {
        f"the best of the first {most}, measured": [one.raced[most] for one in unique] for most in RACED
    }
    for title, pairs in named.items():
        share = float(np.mean([excess <= 0.10 for excess, _ in pairs]))
        spent = float(np.mean([usd for _, usd in pairs]))
        print(
            f"{title:42} at most 10 % dearer than the cheapest in {share:4.0%} of {len(unique)} jobs"
            f" (goal 90 %: {verdict(share >= 0.9)})"
            f" for {spent:.1%} of the USD of every type (goal 25 %: {verdict(spent <= 0.25)})"
        )


def leave_out(data: Data, *, described: bool) -> list[Outcome]:
    prices, outcomes = usd_by_type(), []
    tests = [j for j in range(len(data.models)) if (~np.isnan(data.levels[j])).sum() >= FEWEST_TYPES]
    for model in sorted({m for m, one in zip(data.models, data.references, strict=True) if one.tokens}):
        for part in range(PARTS):
            others = [j for j in tests if data.models[j] != model]
            table = complete(data, others, lambda one, part=part: part_of(one.family, PARTS) != part)
            outcomes += [
                predict_test(
                    data,
                    table,
                    j,
                    prices,
                    is_held=lambda one, part=part: part_of(one.family, PARTS) == part,
                    description=data.references[j] if described else None,
                )
                for j in tests
                if data.models[j] == model
            ]
    return outcomes


def programs(data: Data, given: set[str], count: int, *, kept_back: bool) -> list[Outcome]:
    """Predict the tests of other programs, each program left out with a part of the families."""
    tests = [j for j in range(len(data.models)) if (~np.isnan(data.levels[j])).sum() >= FEWEST_TYPES]
    mark = next(j for j in tests if data.references[j].name == PASSMARK)
    outcomes = []
    for part in [PARTS] if kept_back else range(PARTS):

        def is_held(one: Traits, part: int = part) -> bool:
            return part == (part_of(one.family, PARTS) if one.family in given else PARTS)

        def is_used(one: Traits, held: Callable[[Traits], bool] = is_held) -> bool:
            return one.family in given and not held(one)

        by_rule = rule_levels(complete(data, [mark], is_used))
        own = {data.models[j] for j in tests if not data.references[j].kind.is_language} - {RULE}
        for program in sorted(own):
            table = complete(data, [j for j in tests if data.models[j] != program], is_used)
            outcomes += [
                predict_test(
                    data,
                    table,
                    j,
                    usd_by_type(),
                    is_held=is_held if not kept_back else lambda one: one.family not in given,
                    description=None,
                    count=count,
                    by_rule=by_rule,
                )
                for j in tests
                if data.models[j] == program
            ]
    return outcomes


def print_programs(data: Data, outcomes: Sequence[Outcome], *, held: bool) -> None:
    """Print errors by program next to the simple rules, with intervals scaled by other programs' errors."""
    print("program, tests: median (mean) error; cores x clock, PassMark; 90 % interval holds")
    traits = {one.name: one for one in data.traits}
    for program in (*sorted({one.model for one in outcomes}), ""):
        some = [one for one in outcomes if program in {one.model, ""}]
        errors = [(relative(o)[o.held] if held else relative(o)) for o in some]
        middle = np.mean([np.median(e) for e in errors])
        hits = [_inside(o, Calibration())[o.held if held else slice(None)] for o in some]
        inside = np.mean([np.mean(one) for one in hits])
        rules = [np.mean([one.rules[rule][0] for one in some]) for rule in some[0].rules]
        mean = np.mean([np.mean(e) for e in errors])
        print(
            f"{program or 'all':14} {len(some):4}: {middle:6.1%} ({mean:6.1%});"
            f" {', '.join(f'{value:6.1%}' for value in rules)}; {inside:4.0%}"
            + (
                ""
                if program
                else f" (goals 20 %: {verdict(middle <= 0.2)}; {verdict(0.87 <= inside <= 0.93)})"
            )
        )
    middles = [np.median(relative(o)[o.held] if held else relative(o)) for o in outcomes]
    print(f"median over the tests of their median errors: {np.median(middles):.1%}")
    for title, places in {
        "the first choice": [(one.excess, one.raced[8][0]) for one in outcomes],
        **{rule: [one.rules[rule][1:] for one in outcomes] for rule in outcomes[0].rules},
    }.items():
        chosen, raced = (np.mean([pair[i] <= 0.1 for pair in places]) for i in (0, 1))
        print(f"{title}: within 10 % of the cheapest in {chosen:.0%} (goal 65 %), the best of 8: {raced:.0%}")
    for most in RACED:
        print(f"the best of {most} in a race: {np.mean([one.raced[most][0] <= 0.1 for one in outcomes]):.0%}")
    for is_large in (False, True):
        scores = [
            (np.abs(o.errors) / o.deviations)[[(traits[n].cores > MANY_CORES) == is_large for n in o.names]]
            for o in outcomes
        ]
        print(f"scale of intervals, many cores {is_large}: {np.quantile(np.concatenate(scores), 0.9):.2f}")
    print_types(outcomes, {one.model: Calibration() for one in outcomes}, held=held)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--undescribed", action="store_true")
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--repeats", action="store_true")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--kept-back", action="store_true")
    parser.add_argument("--types", type=int, default=3, help="that are measured, with --programs")
    options = parser.parse_args()
    if options.repeats:
        print_repeats(options.folder)
        if options.repository:
            data = read_data(options.folder, repository=options.repository, kept_back=True)
            print_twins(data, given_families(options.folder))
        return
    if options.programs:
        data = read_data(options.folder, repository=options.repository, kept_back=True)
        given = given_families(options.folder)
        outcomes = programs(data, given, options.types, kept_back=options.kept_back)
        print_programs(data, outcomes, held=options.kept_back)
        return
    data = read_data(options.folder, repository=options.repository)
    outcomes = leave_out(data, described=not options.undescribed)
    scales = {m: calibration(o for o in outcomes if o.model != m) for m in {o.model for o in outcomes}}
    for model in sorted({one.model for one in outcomes}):
        print_errors(model, [one for one in outcomes if one.model == model], held=False)
    print_errors("all models", outcomes, held=False)
    print_errors("all models, left-out families", outcomes, held=True)
    print_intervals(outcomes, scales)
    print_types(outcomes, scales, held=True)
    print_choices(outcomes)
    print(f"scale of intervals, x86 and Arm: {calibration(outcomes)}")


if __name__ == "__main__":
    main()
