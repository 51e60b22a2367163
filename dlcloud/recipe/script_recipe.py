"""A recipe for a user's own script, as commented YAML."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.recipe.script import Script, Throughput

SCHEMA_FILE = "recipe.schema.json"
"""Beside the recipe: editors complete and check its keys by it."""
SCHEMA_LINE = "# yaml-language-server: $schema={}\n"
GPU_TYPES, CPU_TYPES = "[g4dn.xlarge, g6.xlarge]", "[c7i.xlarge, c6i.xlarge]"
MARKET = "  market: on-demand # or spot-then-on-demand"
ON_SPOT = ", then also on_demand_base: 1, which coordinates the others"
TUNABLE = ("batch", "workers", "threads", "precision", "dtype", "amp", "compile")
"""Arguments that steer the speed, by a part of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRecipe:
    """What a recipe for a script is made of.

    Attributes:
        name: Of the recipe.
        script: What the script needs and prints.
        command: Runs it.
        files: The file or folder that is sent, relative to the recipe.
        requirements: Pinned packages.
        unpinned: Packages whose versions are not known.
        throughput: How it is read, if the script prints one.
        schema: The schema's file for editors.
    """

    name: str
    script: Script
    command: str
    files: str
    requirements: Sequence[str]
    unpinned: Sequence[str]
    throughput: Throughput | None
    schema: str

    def text(self) -> str:
        """Return the recipe."""
        return "\n".join(
            [
                SCHEMA_LINE.format(self.schema).rstrip(),
                "# Written by dlcloud init: dlcloud up FILE --dry-run shows the plan and its cost.",
                f"name: {json.dumps(self.name)}",
                "",
                "# local rehearses on this machine by the same code: no account, no bill; then: aws",
                "cloud: local",
                "",
                "instances:",
                f"  types: {GPU_TYPES if self.script.uses_cuda else CPU_TYPES} # in this order; bench: each",
                *(["  count: {min: 1, max: 3}"] if self.script.is_elastic else []),
                MARKET + (ON_SPOT if self.script.is_elastic else ", spot"),
                "",
                *self._setup(),
                *self._workload(),
                "",
                *self._keep(),
                "budget:",
                "  max_hours: 1 # each instance ends itself then, even if this machine is off",
                "",
            ]
        )

    def _setup(self) -> list[str]:
        if not self.requirements and not self.unpinned:
            return []
        lines = ["setup:", "  requirements: # pinned; python3 of the command has them"]
        if not self.requirements:
            lines = ["setup:", "  requirements: [] # pinned; python3 of the command has them"]
        lines += [f"    - {json.dumps(requirement)}" for requirement in self.requirements]
        lines += [f"    # - {name}==  which version? it is not installed here" for name in self.unpinned]
        return [*lines, ""]

    def _keep(self) -> list[str]:
        if not self.script.written:
            return []
        return [
            "keep:",
            f"  files: {json.dumps(self.script.written)} # brought home: nothing else outlives the instance",
            "",
        ]

    def _workload(self) -> list[str]:
        lines = ["workload:", f"  command: {json.dumps(self.command)}", f"  files: {json.dumps(self.files)}"]
        if self.script.required:
            lines.append(f"  # it requires {', '.join(self.script.required)}: add them to the command")
        if self.script.is_elastic:
            return [*lines, "  elastic: {} # a worker per GPU, or one; they join and leave at any step"]
        lines += self._reading()
        tunable = [name for name in self.script.arguments if any(part in name for part in TUNABLE)]
        if tunable:
            name, default = tunable[0], self.script.arguments[tunable[0]]
            lines += [
                "  # Ways to run it, compared with each other; the first is the baseline:",
                "  # settings:",
                "  #   - {name: as-it-is}",
                f"  #   - {{name: tuned, arguments: [{name}, {json.dumps(default or '...')}]}}",
            ]
        return lines

    def _reading(self) -> list[str]:
        if self.script.reports:
            return ["  reported: yes # by dlcloud_report", "  unit: images # what the script counts"]
        if self.throughput is None:
            return [
                "  # No throughput was seen in what it prints: whole runs are timed. To say otherwise:",
                "  # throughput: 'images/sec: ([0-9.]+)'   # a line that it prints",
                "  # json_field: images_per_second         # of lines that are JSON",
                "  # reported: yes   # the script imports dlcloud_report, and calls its step(images)",
            ]
        if self.throughput.json_field:
            reading = f"  json_field: {json.dumps(self.throughput.json_field)}"
        else:
            quoted = self.throughput.pattern.replace("'", "''")
            reading = f"  throughput: '{quoted}' # of the lines that it prints"
        return [reading, f"  unit: {json.dumps(self.throughput.unit)}"]
