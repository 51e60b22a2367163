"""Changes of a recipe for one `up`: the recipe that they give is read and checked like a written one."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.recipe.document import TextFault, read_model
from dlcloud.recipe.instances import Requirements
from dlcloud.recipe.recipe import Recipe

OPTIONS: dict[tuple[str, ...], str] = {
    ("cloud",): "--cloud",
    **{("instances", key): f"--{key.replace('_', '-')}" for key in Requirements.model_fields},
    ("instances", "types"): "--type",
    ("region",): "--region",
    ("instances", "market"): "--market",
    ("instances", "count"): "--count",
    ("workload", "settings"): "--setting",
    ("workload", "environment"): "--env",
    ("workload", "secrets"): "--secret",
}
"""The option that changes the value at a path of a recipe."""


LIMITS = {"max_usd_per_hour", "exclude"}
"""Requirements that stay, whatever types an option names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The changes; what is empty stays as the recipe has it.

    Attributes:
        cloud: `aws`, or `local` for a rehearsal.
        types: Instance types, in the order in which they are tried.
        needs: Requirements by their keys, such as `gpu`; with `types`, no other of the recipe's count.
        region: Of AWS.
        market: As in a recipe.
        count: A number, or the least and the most, `1-4`.
        settings: Names of settings; the others are left out.
        environment: Variables in addition to the recipe's, or in place of them.
        secrets: Sources of secrets by their names, likewise.
    """

    cloud: str = ""
    types: tuple[str, ...] = ()
    needs: Mapping[str, Any] = field(default_factory=dict)
    region: str = ""
    market: str = ""
    count: str = ""
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return them as they are typed; a secret's value is not among them."""
        options = [("--cloud", self.cloud)] if self.cloud else []
        options += [("--type", name) for name in self.types]
        for key, value in self.needs.items():
            words = [value] if isinstance(value, str) else value
            options += [(OPTIONS["instances", key], shlex.quote(word)) for word in words]
        single = (("--region", self.region), ("--market", self.market), ("--count", self.count))
        options += [pair for pair in single if pair[1]]
        options += [("--setting", name) for name in self.settings]
        options += [("--env", f"{name}={value}") for name, value in self.environment.items()]
        options += [("--secret", f"{name}={source}") for name, source in self.secrets.items()]
        return " ".join(f"{option} {value}" for option, value in options)

    def apply(self, recipe: Recipe) -> tuple[Recipe, str]:
        """Return the changed recipe, and its text.

        Raises:
            RecipeError: The changes, or what they make of the recipe, cannot be; names the options.
        """
        content = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        self._change_instances(content["instances"])
        if self.cloud:
            content["cloud"] = self.cloud
        if self.cloud == "aws":
            content.pop("rehearsal", None)
        if self.region:
            for key in ("regions", "geography"):
                content.pop(key, None)
            content["region"] = self.region
        workload = content["workload"]
        if self.settings:
            workload["settings"] = self._chosen_settings(workload.get("settings", []))
        for key in ("environment", "secrets"):
            if changes := getattr(self, key):
                workload[key] = {**workload.get(key, {}), **changes}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        changed, faults = read_model(Recipe, text)
        if changed is None:
            raise RecipeError("\n".join(self._describe(fault) for fault in faults))
        return changed, text

    def _change_instances(self, instances: dict[str, Any]) -> None:
        if self.types or self.needs.keys() - LIMITS:
            instances.pop("types", None)
        if self.types:
            for key in Requirements.model_fields.keys() - LIMITS:
                instances.pop(key, None)
            instances["types"] = list(self.types)
        instances.update(self.needs)
        if self.market:
            instances["market"] = self.market
        if self.count:
            least, dash, most = self.count.partition("-")
            instances["count"] = {"min": least, "max": most} if dash else least
        if self.market == "on-demand":
            instances.pop("on_demand_base", None)
        most = str(self.count).rpartition("-")[2]
        if "on_demand_base" in instances and most.isdigit():
            instances["on_demand_base"] = min(instances["on_demand_base"], int(most))

    def _chosen_settings(self, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the named settings, in the recipe's order."""
        names = [setting["name"] for setting in settings]
        unknown = [name for name in self.settings if name not in names]
        if unknown:
            hint = f"settings: {', '.join(names)}" if names else "the recipe has no settings"
            raise RecipeError(f"--setting {unknown[0]}: there is no such setting", hint)
        return [setting for setting in settings if setting["name"] in self.settings]

    def requirements(self) -> Requirements:
        """Return what the options require of types, without a recipe.

        Raises:
            RecipeError: An option is at fault.
        """
        content = {"types": list(self.types), **self.needs}
        read, faults = read_model(Requirements, yaml.safe_dump(content))
        if read is None:
            places = [replace(fault, path=("instances", *fault.path)) for fault in faults]
            raise RecipeError("\n".join(self._describe(fault) for fault in places))
        return read

    def _describe(self, fault: TextFault) -> str:
        """Return a fault under the option that caused it, else under all of them."""
        paths = [path for path in OPTIONS if fault.path[: len(path)] == path]
        if not paths:
            return f"{self}: {fault.message}"
        inner = ".".join(str(part) for part in fault.path[len(paths[0]) :] if isinstance(part, str))
        return f"{OPTIONS[paths[0]]}{f' {inner}' if inner else ''}: {fault.message}"
