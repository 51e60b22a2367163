"""Which instance types meet a recipe's requirements, the cheapest first, and what the others lack.

`match_types` judges what a Region offers by `instances.gpu`, `vcpus` and so on; `Matches.cheapest` orders the
rest by price. A number alone is the least. Without names in `types`, only types that are usual for a workload
match: no older generations, burstable types, bare metal or parts of a GPU, and no unasked accelerators. A
cluster has one image: x86_64, unless no match has it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dlcloud.model.errors import CapacityError, RecipeError
from dlcloud.model.instance import X86_64, InstanceType, Market, Price, is_burstable
from dlcloud.model.money import exact
from dlcloud.planning.fit import FLAGS_OF_ISA, USABLE_MEMORY, KnownType, machine_of_type, successors

if TYPE_CHECKING:  # pydantic, which most commands never need
    from dlcloud.recipe.instances import Requirements

MOST_CHOSEN = 10
"""More pools gain little capacity, and the dearest one states the most that a plan can cost."""
SHOWN = 3
ANY, NONE = "any", "none"
NO_GPU = "no GPU"
_FLAGS = {flag for flags in FLAGS_OF_ISA.values() for flag in flags}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen types, the cheapest first, and what the plan states of the choice."""

    types: tuple[KnownType, ...]
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.hardware.name for entry in self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The types that meet the requirements.

    Attributes:
        left_out: The others with what they lack, by requirement.
        idle: What `exclude` names that no offered type is.
    """

    requirements: "Requirements"
    types: tuple[InstanceType, ...]
    left_out: Mapping[str, Sequence[tuple[str, str]]]
    idle: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [hardware.name for hardware in self.types]

    def cheapest(
        self, prices: Sequence[Price], markets: Sequence[Market], *, most: int = MOST_CHOSEN
    ) -> Choice:
        """Choose by the price of the market that is asked first; an unknown price comes last.

        Raises:
            CapacityError: No type is left.
        """
        cap, left_out = self.requirements.max_usd_per_hour, dict(self.left_out)
        offers = [
            KnownType(
                hardware=one,
                price=_lowest(prices, one.name, markets[:1]) or _lowest(prices, one.name, [*Market]),
            )
            for one in self.types
        ]
        if cap is not None:
            least = {one.name: _lowest(prices, one.name, markets) for one in self.types}
            dear = {name: price for name, price in least.items() if not price or price.hourly_usd > cap}
            left_out["max_usd_per_hour"] = [
                (name, _usd(dear[name])) for name in sorted(dear, key=lambda name: _cost(dear[name]))
            ]
            offers = [entry for entry in offers if entry.hardware.name not in dear]
        offers.sort(key=lambda entry: _cost(entry.price))
        chosen, dearer = offers[:most], offers[most:]
        lines = _lines(left_out)
        if not chosen:
            raise CapacityError(f"no instance type has {self.requirements.describe()}", "; ".join(lines))
        if dearer:
            names = [(entry.hardware.name, _usd(entry.price)) for entry in dearer]
            lines.insert(0, _left_out("price", names))
        count = f"{len(chosen)} of {len(offers)}" if dearer else f"{len(chosen)}"
        notes = (
            f"types for {self.requirements.describe()}: {count}, the cheapest {markets[0]} first",
            *lines,
            *[f"exclude: no type {pattern} is offered" for pattern in self.idle],
        )
        return Choice(types=tuple(chosen), notes=notes)


def match_types(requirements: "Requirements", offered: Sequence[InstanceType]) -> Matches:
    """Judge every type that is offered; each is left out by the first requirement that it misses.

    Raises:
        RecipeError: A name or a word is unknown; the hint has those that are nearest.
    """
    refuse_unknown_words(requirements, offered)
    named = [one for one in offered if not requirements.types or is_named(one.name, requirements.types)]
    lacking = {one.name: list(_misses(requirements, one)) for one in named}
    matches = [one for one in named if not lacking[one.name]]
    if requirements.architecture is None and any(X86_64 in one.architectures for one in matches):
        for one in matches:
            if X86_64 not in one.architectures:
                lacking[one.name] = [("architecture", one.architecture)]
        matches = [one for one in matches if not lacking[one.name]]
    return Matches(
        requirements=requirements,
        types=tuple(matches),
        left_out=_by_requirement(lacking),
        idle=tuple(
            pattern
            for pattern in requirements.exclude
            if not any(fnmatchcase(one.name, pattern) for one in offered)
        ),
    )


def describe_lacking(
    requirements: "Requirements", offered: Sequence[InstanceType], dear: Sequence[KnownType]
) -> str:
    """Return that no type meets the requirements, and for each one some that come nearest.

    Args:
        requirements: They are stated.
        offered: All types.
        dear: Those that only `max_usd_per_hour` leaves out.
    """
    left_out = _by_requirement({one.name: list(lacks(requirements, one)) for one in offered})
    cheapest_first = sorted(dear, key=lambda entry: _cost(entry.price))
    left_out["max_usd_per_hour"] = [(entry.hardware.name, _usd(entry.price)) for entry in cheapest_first]
    return "\n".join([f"no instance type has {requirements.describe() or 'that'}", *_lines(left_out)])


def _by_requirement(lacking: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Return the types that lack something, by the first requirement that they miss; the nearest first."""
    left_out: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(filter(lacking.get, lacking), key=lambda name: _distance(lacking[name])):
        requirement, reason = lacking[name][0]
        left_out.setdefault(requirement, []).append((name, reason))
    return left_out


def lacks(requirements: "Requirements", hardware: InstanceType) -> Iterator[tuple[str, str]]:
    """Yield each requirement that a type does not meet, and what it has instead; prices are not judged."""
    device = hardware.accelerator
    has = NO_GPU if device is None else device.describe()
    if requirements.gpu is not None and not _has_gpu(requirements.gpu, hardware):
        yield "gpu", has
        if device is None or _key(device.name) != _key(requirements.gpu.partition(":")[0]):
            yield "gpu", "another GPU"  # a type with the right one comes nearer
    if requirements.gpu_memory_gib is not None:
        gib = device.memory_mib / 1024 if device is not None and device.is_gpu else 0.0
        if not _is_in(requirements.gpu_memory_gib, gib, slack=USABLE_MEMORY):
            yield "gpu_memory_gib", f"{has}, {gib:.3g} GiB each" if gib else has
    if requirements.vcpus is not None and not _is_in(requirements.vcpus, hardware.vcpus):
        yield "vcpus", f"{hardware.vcpus} vCPUs"
    if requirements.memory_gib is not None and not _is_in(requirements.memory_gib, hardware.memory_gib):
        yield "memory_gib", f"{hardware.memory_gib:.3g} GiB"
    if requirements.architecture is not None and requirements.architecture not in hardware.architectures:
        yield "architecture", hardware.architecture
    flags = machine_of_type(hardware).flags
    for word in requirements.instruction_set:
        if flags is None:
            yield "instruction_set", "unknown"
        elif not {*FLAGS_OF_ISA.get(word.lower(), (word.lower(),))} <= flags:
            yield "instruction_set", f"no {word}"
    if is_named(hardware.name, requirements.exclude):
        yield "exclude", "excluded"


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """True if one of some names or patterns, as g6.*, names a type."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def refuse_unknown_words(requirements: "Requirements", offered: Sequence[InstanceType]) -> None:
    """Refuse names of GPUs, instruction sets and types that no offered type has.

    Raises:
        RecipeError: It names the word, and those that are nearest.
    """
    gpu = (requirements.gpu or ANY).partition(":")[0]
    gpus = dict.fromkeys(one.accelerator.name for one in offered if one.accelerator is not None)
    if gpu.lower() not in {ANY, NONE} and _key(gpu) not in map(_key, gpus):
        raise RecipeError(f"instances.gpu: no GPU {gpu} is offered", _nearest(gpu, [*gpus], _key))
    sets = sorted(FLAGS_OF_ISA.keys() | _FLAGS)
    for word in requirements.instruction_set:
        if word.lower() not in sets:
            message = f"instances.instruction_set: {word} is not known"
            raise RecipeError(message, _nearest(word, sets, str.lower))
    for pattern in requirements.types:
        if not any(fnmatchcase(one.name, pattern) for one in offered):
            offers = [KnownType(hardware=one, price=None) for one in offered]
            family = pattern.partition(".")[0]
            near = [entry.hardware.name for entry in successors(pattern.replace("*", "xlarge"), offers)]
            near = [f"{name.partition('.')[0]}.*" for name in near] if pattern == f"{family}.*" else near
            hint = f"nearest: {', '.join(dict.fromkeys(near))}" if near else "dlcloud instances lists types"
            raise RecipeError(f"instances.types: no type {pattern} is offered", hint)


def _misses(requirements: "Requirements", hardware: InstanceType) -> Iterator[tuple[str, str]]:
    """Yield what a type lacks, and what is unusual of one that is not named."""
    yield from lacks(requirements, hardware)
    if requirements.types:
        return
    device = hardware.accelerator
    if hardware.status != "current":
        yield "types", hardware.status.replace("-", " ")
    if is_burstable(hardware.name):
        yield "types", "burstable"
    if ".metal" in hardware.name:
        yield "types", "bare metal"
    if device is not None and device.share < 1:
        yield "types", device.describe()
    if device is not None and requirements.gpu is None and requirements.gpu_memory_gib is None:
        yield "gpu", f"{device.describe()}, not asked for"


def _distance(lacking: Sequence[tuple[str, str]]) -> tuple[int, bool]:
    return len(lacking), lacking[0][1] == NO_GPU


def _has_gpu(gpu: str, hardware: InstanceType) -> bool:
    name, _, count = gpu.partition(":")
    device = hardware.accelerator
    if name.lower() == NONE or device is None:
        return name.lower() == NONE and device is None
    if name.lower() == ANY:
        return device.is_gpu and _is_in(count or "1+", device.count)
    if not count:
        return _key(device.name) == _key(name) and device.count == device.share == 1
    exact_count = count if re.search(r"[+-]", count) else f"{count}-{count}"
    return _key(device.name) == _key(name) and device.share == 1 and _is_in(exact_count, device.count)


def _is_in(text: str, value: float, *, slack: float = 1.0) -> bool:
    """True if a value is in a range; `slack` is the part of the least that is enough: 24 GB are 22.4 GiB."""
    least, dash, most = text.rstrip("+").partition("-")
    return float(least) * slack <= value and (not dash or value <= float(most))


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _nearest(word: str, names: Sequence[str], key: Callable[[str], str]) -> str:
    by_key = {key(name): name for name in names}
    near = [by_key[match] for match in get_close_matches(key(word), by_key, n=SHOWN, cutoff=0.4)]
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names)}"


def _lowest(prices: Sequence[Price], name: str, markets: Sequence[Market]) -> Price | None:
    own = (price for price in prices if price.instance_type == name and price.market in markets)
    return min(own, key=lambda price: price.hourly_usd, default=None)


def _cost(price: Price | None) -> tuple[bool, Decimal]:
    """Return what to sort by price with; an unknown one comes last."""
    return price is None, price.hourly_usd if price is not None else Decimal(0)


def _usd(price: Price | None) -> str:
    return "price unknown" if price is None else f"{exact(price.hourly_usd)} USD/h"


def _lines(left_out: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    return [
        _left_out(requirement, others)
        for requirement, others in left_out.items()
        if others and requirement != "exclude"
    ]


def _left_out(requirement: str, others: Sequence[tuple[str, str]]) -> str:
    """Return who is left out by one requirement in a line, with the first as examples."""
    shown = ", ".join(f"{name} ({reason})" for name, reason in others[:SHOWN])
    more = len(others) - SHOWN
    return f"left out by {requirement}: {shown}{f' and {more:,} more' if more > 0 else ''}"
