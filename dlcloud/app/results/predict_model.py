"""`dlcloud predict --model`: what a language model costs on GPU and CPU types, before anything is measured.

It needs no account and no results: the ground is what others published, and prices of the bundled table.
"""

from collections.abc import Mapping

from dlcloud.app.context import Context
from dlcloud.app.results.predict import prices_of
from dlcloud.app.terminal.screen import say
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.instance import InstanceType, Market, is_burstable
from dlcloud.prediction.measured_types import TypeTable
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
)
from dlcloud.report.served_types import served_report
from dlcloud.report.table import Format, render
from dlcloud.resources.type_table import gpu_levels, serving_table, type_table

FEW = 15
GB_PER_MIB = 1.048576e-3
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
            answer = serve_one_request(references, levels[name], demand, name, GPU_ERROR)
        elif device is None and row is not None:
            answer = serve_one_request(models, [row.levels[j] for j in places], demand, name, CPU_ERROR)
        if isinstance(answer, str):
            refused[name] = answer
        else:
            served.append(answer if answer.instance_type == name else answer.on(name))
    return served, refused


def _gigabytes(hardware: InstanceType) -> float:
    """Return the memory that holds a model: of one GPU, else of the machine."""
    device = hardware.accelerator
    return hardware.memory_gib * 1.0737 if device is None else device.memory_mib * GB_PER_MIB
