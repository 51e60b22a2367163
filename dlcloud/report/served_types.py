"""What a language model costs by type, before anything was measured: each figure with what it rests on."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import exp

from dlcloud.analysis.cost import usd_per_million
from dlcloud.model.instance import Market
from dlcloud.model.money import money
from dlcloud.prediction.serving import LLAMA_CPP, Demand, ServedModel, ServedType, Source
from dlcloud.report.cells import digits
from dlcloud.report.table import Cell, Report, Section

ATTRIBUTION = (
    "published servings from aiconfigurator-core 0.12, NVIDIA, Apache-2.0; llama.cpp's speeds derived from"
    " measurements (c) Spare Cores, CC BY-SA 4.0"
)
MOST_NAMED = 4
Prices = Mapping[str, Mapping[Market, Decimal]]


def served_report(
    served: Sequence[ServedType],
    refused: Mapping[str, str],
    prices: Prices,
    *,
    demand: Demand,
    region: str,
    market: Market,
    most: int,
) -> Report:
    """Return the types by USD per million generated tokens, the cheapest first; records have all types."""
    ranked = sorted(served, key=lambda one: _usd(one, prices, market) or Decimal("Infinity"))
    grouped: dict[str, list[str]] = {}
    for name, reason in refused.items():
        grouped.setdefault(reason, []).append(name)
    return Report(
        command="predict",
        records=[_record(one, prices) for one in ranked],
        sections=[_section(ranked, prices, demand, region, market, most), *_refused(grouped)],
        empty="",
        extra={
            "region": region,
            "attribution": ATTRIBUTION,
            "model": demand.model.name,
            "precision": demand.precision,
            "not_predicted": [{"reason": reason, "types": names} for reason, names in grouped.items()],
        },
    )


def _section(
    ranked: Sequence[ServedType],
    prices: Prices,
    demand: Demand,
    region: str,
    market: Market,
    most: int,
) -> Section:
    goals = f"first token in {demand.first_token_s:g} s, the next in {demand.token_s * 1000:g} ms"
    notes = [f"USD per million generated tokens, each after its share of the prompt; {region}; {ATTRIBUTION}"]
    has_spot = market is not Market.SPOT and any(Market.SPOT in of_type for of_type in prices.values())
    if not has_spot and market is not Market.SPOT:
        notes.append("spot prices: --live asks AWS")
    if not ranked:
        notes.append("no type with a ground meets the goals: allow more time, or fewer bits")
    if len(ranked) > most:
        notes.append(f"the {most} cheapest of {len(ranked)} types; --all, or --output csv, has all")
    if any(one.source is Source.PREDICTED for one in ranked[:most]):
        notes.append("predicted: measure before you buy: dlcloud bench --benchmark language")
    if any(one.setup == LLAMA_CPP for one in ranked[:most]):
        notes.append(f"{LLAMA_CPP}: one request at a time; a server that answers many is cheaper")
    return Section(
        heading=f"{_sized(demand.model)} in {demand.precision}, {demand.prompt} tokens read and"
        f" {demand.answer} written: {goals}",
        titles=(
            *("type", "source", "copies x GPUs, requests", "tokens/s", "TTFT ms", "TPOT ms"),
            *(f"USD/M {market}", "90 %", *(["USD/M spot"] if has_spot else [])),
        ),
        rows=[_row(one, prices, market, has_spot=has_spot) for one in ranked[:most]],
        notes=notes,
        numeric=frozenset({3, 4, 5, 6}),
        optional=(3, 4),
    )


def _sized(model: ServedModel) -> str:
    """Return the name of a model with its parameters, so that one sees what was read of its config.json."""
    if model.name[:1].isdigit():
        return model.name
    used = f", {model.active:.3g}B for a token" if model.active < model.parameters else ""
    return f"{model.name} ({model.parameters:.3g}B{used})"


def _row(one: ServedType, prices: Prices, market: Market, *, has_spot: bool) -> tuple[str, ...]:
    usd, low, high = _usd(one, prices, market), *_bounds(one, prices, market)
    spot = _usd(one, prices, Market.SPOT)
    return (
        one.instance_type,
        one.source,
        one.setup,
        digits(one.tokens_s),
        _ms(one.first_token_s),
        _ms(one.token_s),
        "" if usd is None else money(usd),
        "" if low is None or high is None else f"{money(low)}–{money(high)}",
        *(["" if spot is None else money(spot)] if has_spot else []),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2g}" if seconds < 0.1 else f"{seconds * 1000:.0f}"  # noqa: PLR2004  as sure


def _refused(grouped: Mapping[str, Sequence[str]]) -> list[Section]:
    """Return why types are not listed: each reason once."""
    lines = []
    for reason, names in sorted(grouped.items(), key=lambda pair: -len(pair[1])):
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        lines.append(f"{', '.join(sorted(names)[:MOST_NAMED])}{more}: {reason}")
    return [Section(heading="not listed", titles=(), rows=(), notes=lines)] if lines else []


def _usd(one: ServedType, prices: Prices, market: Market, factor: float = 1.0) -> Decimal | None:
    price = prices.get(one.instance_type, {}).get(market)
    return None if price is None else usd_per_million(price, one.tokens_s * factor)


def _bounds(one: ServedType, prices: Prices, market: Market) -> tuple[Decimal | None, Decimal | None]:
    if one.error is None:
        return None, None
    return _usd(one, prices, market, exp(one.error)), _usd(one, prices, market, exp(-one.error))


def _record(one: ServedType, prices: Prices) -> dict[str, Cell]:
    record: dict[str, Cell] = {
        "instance_type": one.instance_type,
        "source": one.source.value,
        "setup": one.setup,
        "tokens_per_s": one.tokens_s,
        "first_token_s": one.first_token_s,
        "token_s": one.token_s,
    }
    for market in Market:
        word = market.value.replace("-", "_")
        low, high = _bounds(one, prices, market)
        record[f"{word}_usd_per_million"] = _usd(one, prices, market)
        record[f"{word}_usd_per_million_low"], record[f"{word}_usd_per_million_high"] = low, high
    return record
