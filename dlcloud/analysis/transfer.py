"""The exchange format of runs: one JSON object a line, with everything that a report needs.

Schema 1. Every line has `schema` (1) and `record` ("run"), the fields of Run, and

prices      [{market, zone, hourly_usd, as_of, source}]: what an hour cost in both markets
instance    {launched_at, ended_at, disk_gib, interrupted}: the billing period; null if unknown
records     what the program wrote, as `benchmarks/harness/records.py` documents it

Times are ISO 8601 with their offset, money is text, so that it stays exact. `run_id` identifies a run. A
reader ignores keys that it does not know. `dlcloud schema results` prints the JSON Schema.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from dlcloud.analysis.cost import BillingPeriod
from dlcloud.analysis.result import Run, RunState, comparison_of, result_of
from dlcloud.model.instance import Market, Price, hardware_of
from dlcloud.model.money import MarketPrices

SCHEMA = 1
MOST_FAULTS = 20
MOST_FAULTS_OF_A_LINE = 5

# Text that is printed to terminals and used in file names must have no control characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_READERS = {"result": result_of, "comparison": comparison_of, "overall": comparison_of, "start": hardware_of}


def _printable(text: str) -> str:
    if _CONTROL.search(text) or "\n" in text:
        raise ValueError("has control characters")
    return text


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Values = Annotated[str, Field(max_length=100_000), AfterValidator(_printable)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Time = Annotated[AwareDatetime, AfterValidator(_utc)]
Usd = Annotated[Decimal, Field(ge=0, lt=1_000_000, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PriceDocument(_Part):
    """What an hour cost in one market."""

    market: Market
    zone: Text = ""
    hourly_usd: Usd
    as_of: Time
    source: Text


class InstanceDocument(_Part):
    """The billing period of the instance."""

    launched_at: Time
    ended_at: Time | None = None
    disk_gib: int = Field(ge=0, le=65536)
    interrupted: bool = False


class RunDocument(_Part):
    """One run."""

    schema_: Literal[1] = Field(alias="schema", description="The version of this schema.")
    record: Literal["run"]
    run_id: Name
    cluster_id: Name
    cluster_name: Name
    instance_id: Name
    workload: Text
    cloud: Literal["aws", "local"]
    region: Text
    zone: Text
    instance_type: Text
    market: Market
    image_id: Text
    hourly_usd: Usd | None
    price_source: Text
    price_as_of: Time | None
    state: RunState
    started_at: Time
    ended_at: Time | None = None
    exit_status: int | None = None
    setup_at: Time | None = None
    nodes: int = Field(default=1, ge=1, le=1000, description="Instances on which the workload ran together.")
    rank: int = Field(default=0, ge=0, lt=1000, description="Of the instance among them.")
    head_run_id: Name | Literal[""] = Field(default="", description="The run of rank 0, for another node's.")
    experiment: Text = Field(default="", description="A digest that the runs of an experiment share.")
    trial: int = Field(default=0, ge=0, description="The number of the trial of the experiment, from 1.")
    trial_values: Values = Field(default="", description="The trial's values, a JSON object.")
    prices: list[PriceDocument] = []
    instance: InstanceDocument | None = None
    records: list[dict[str, Any]] = []

    @property
    def run(self) -> Run:
        return Run(**{name: getattr(self, name) for name in Run.__dataclass_fields__})

    @property
    def market_prices(self) -> list[Price]:
        return [
            Price(instance_type=self.instance_type, region=self.region, **dict(price))
            for price in self.prices
        ]

    @property
    def billing_period(self) -> BillingPeriod | None:
        if self.instance is None:
            return None
        return BillingPeriod(instance_id=self.instance_id, **dict(self.instance))


def read_line(line: bytes) -> RunDocument:
    """Read one line.

    Raises:
        ValueError: It is none; the message has every fault, `path: what is wrong with it` each.
    """
    try:
        document = RunDocument.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(_faults(error)) from error
    faults = [
        fault for number, record in enumerate(document.records) for fault in _record_faults(number, record)
    ]
    if faults:
        raise ValueError("; ".join(faults))
    return document


def document_of(
    run: Run,
    *,
    prices: MarketPrices | None,
    period: BillingPeriod | None,
    records: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a run as the object that makes a line; None stays null, so that every line has every key."""
    columns: dict[str, Any] = {name: getattr(run, name) for name in Run.__dataclass_fields__}
    listed = [price for market in Market if (price := (prices or MarketPrices()).price(market))]
    keys = ("market", "zone", "hourly_usd", "as_of", "source")
    instance = None if period is None else {key: getattr(period, key) for key in _BILLED}
    return {
        "schema": SCHEMA,
        "record": "run",
        **columns,
        "prices": [{key: getattr(price, key) for key in keys} for price in listed],
        "instance": instance,
        "records": records,
    }


_BILLED = ("launched_at", "ended_at", "disk_gib", "interrupted")


def without_commands(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without the user's command lines and the values of variables, which may be secrets."""
    kept = dict(record)
    for part in ("arguments", "facts"):
        values = kept.get(part)
        if isinstance(values, dict):
            kept[part] = {name: value for name, value in values.items() if name not in _PRIVATE}
    return kept


_PRIVATE = frozenset({"run", "settings", "command", "environment"})


def results_schema() -> dict[str, Any]:
    return RunDocument.model_json_schema(by_alias=True)


def _faults(error: ValidationError) -> str:
    """Return the faults of one line; of a line of another schema nothing else can be said."""
    faults = [(detail["loc"], _fault(detail)) for detail in error.errors()]
    schema = [text for where, text in faults if where == ("schema",)]
    if schema:
        return f"{schema[0]}: this dlcloud reads schema {SCHEMA}"
    return "; ".join(text for _, text in faults[:MOST_FAULTS_OF_A_LINE])


def _fault(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _record_faults(number: int, record: Mapping[str, Any]) -> Iterator[str]:
    kind = record.get("record")
    if not isinstance(kind, str):
        yield f"records.{number}: it has no kind"
        return
    if any(_CONTROL.search(text) for text in _texts(record)):
        yield f"records.{number}: has control characters"
    try:
        if kind in _READERS:
            _READERS[kind](record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield f"records.{number}: this {kind} cannot be read ({error!r})"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
