"""`dlcloud predict --model`: what a language model costs on GPU and CPU types, before anything is measured.

It needs no account and no results: the ground is what others published, and prices of the bundled table.
What the language benchmark measured of that model itself takes the place of these figures.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, log

from dlcloud.app.context import Context
from dlcloud.app.results.predict import prices_of
from dlcloud.app.results.rows import load_rows
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import Accelerator, InstanceType, Market, is_burstable
from dlcloud.prediction.gpu_types import has_sheet, predict_on_gpus
from dlcloud.prediction.measured_servings import measured_servings
from dlcloud.prediction.measured_types import TypeTable
from dlcloud.prediction.predictor import Measurement
from dlcloud.prediction.serving import (
    BYTES,
    CPU_ERROR,
    GPU_ERROR,
    GPUS,
    USED_MEMORY,
    Demand,
    ServedType,
    serve_on_gpus,
    serve_one_request,
    speeds_of,
)
from dlcloud.report.served_types import served_report
from dlcloud.report.table import Format, render
from dlcloud.resources.type_table import gpu_levels, serving_table, type_table
from dlcloud.store.measurements import Selection

FEW = 15
GB_PER_MIB = 1.048576e-3
SINGLE_GPUS = ("g4dn.xlarge", "g6e.xlarge", "p3.2xlarge")
"""Types with one GPU on which llama-bench ran: others are predicted from them."""
NO_GROUND = "nothing is published of it"


def run_model(
    context: Context,
    *,
    demand: Demand,
    region: str,
    market: Market,
    live: bool,
    every: bool,
    output: str,
) -> None:
    """Print USD per million tokens of a model on all types that have a ground, the cheapest first.

    Args:
        context: The collaborators.
        demand: The model and the goals.
        region: The Region of types and prices.
        market: The market by which types are ranked.
        live: Ask AWS for prices, of spot too.
        every: Print every type, not only the cheapest.
        output: The format.
    """
    table, catalog = type_table(), Catalog()
    hardware = {one.name: one for one in catalog.every()}
    prices = prices_of(context, sorted(hardware), region, market, live=live)
    served, refused = answers(demand, table, {name: hardware[name] for name in prices if name in hardware})
    rows = load_rows(context.measurements, Selection(), context.clock.now(), newest=True)
    own = {name: answer for name, answer in measured_servings(rows, demand).items() if name in prices}
    served = [one for one in served if one.instance_type not in own]
    served += [answer for answer in own.values() if isinstance(answer, ServedType)]
    refused = {name: reason for name, reason in refused.items() if name not in own}
    refused |= {name: answer for name, answer in own.items() if isinstance(answer, str)}
    report = served_report(
        served,
        refused,
        prices,
        demand=demand,
        region=region,
        market=market,
        most=len(served) if every else FEW,
    )
    say(render(report, Format(output)))


def answers(
    demand: Demand, table: TypeTable, hardware: Mapping[str, InstanceType]
) -> tuple[list[ServedType], dict[str, str]]:
    """Return how each type serves, and why the others do not, by type."""
    published, (references, levels) = serving_table(), gpu_levels()
    recorded = {name: speeds_of(references, levels[name], demand) for name in SINGLE_GPUS}
    singles = {name: hardware[name].accelerator for name in SINGLE_GPUS if name in hardware}

    def by_sheets(device: Accelerator, name: str) -> ServedType | str:
        """Predict one request at a time from other GPUs: several GPUs answer it no sooner than one."""
        gpus = {**{n: one for n, one in singles.items() if one}, name: replace(device, count=1)}
        ways = [{n: s[way] for n, s in recorded.items() if s and n in gpus} for way in (0, 1)]
        if not ways[0]:
            return NO_GROUND
        measured = [[Measurement(instance_type=n, throughput=v) for n, v in way.items()] for way in ways]
        token, prompt = (predict_on_gpus(way, gpus, [name])[0] for way in measured)
        error = hypot(log(token.high / token.throughput), GPU_ERROR)
        return serve_one_request((token.throughput, prompt.throughput), demand, name, error)

    served: list[ServedType] = []
    refused: dict[str, str] = {}
    by_gpus: dict[tuple[str, int], ServedType | str] = {}
    places = [j for j, one in enumerate(table.references) if one.kind.is_language]
    models = [table.references[j] for j in places]
    for name, one in hardware.items():
        device, row = one.accelerator, table.rows.get(name)
        answer: ServedType | str = NO_GROUND
        if one.retired:
            answer = "it is retired"
        elif is_burstable(name):
            answer = "it slows down when its CPU credits are spent"
        elif device is not None and device.name in GPUS:
            key = (device.name, device.count)
            if key not in by_gpus:
                by_gpus[key] = serve_on_gpus(published, demand, name, *key)
            answer = by_gpus[key]
        elif _gigabytes(one) < demand.model.parameters * BYTES[demand.precision] / USED_MEMORY:
            answer = "the model does not fit into its memory"
        elif device is not None and name in levels:
            answer = serve_one_request(speeds_of(references, levels[name], demand), demand, name, GPU_ERROR)
        elif device is not None and has_sheet(device):
            answer = by_sheets(device, name)
        elif device is None and row is not None:
            speeds = speeds_of(models, [row.levels[j] for j in places], demand)
            answer = serve_one_request(speeds, demand, name, CPU_ERROR)
        if isinstance(answer, str):
            refused[name] = answer
        else:
            served.append(answer if answer.instance_type == name else answer.on(name))
    return served, refused


def _gigabytes(hardware: InstanceType) -> float:
    """Return the memory that holds a model: of one GPU, else of the machine."""
    device = hardware.accelerator
    return hardware.memory_gib * 1.0737 if device is None else device.memory_mib * GB_PER_MIB
