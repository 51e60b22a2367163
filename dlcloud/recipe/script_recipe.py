"""A recipe for a user's own script, as commented YAML."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dlcloud.recipe.script import Script, Throughput

SCHEMA_FILE = "recipe.schema.json"
"""Next to the recipe: editors complete and check its keys by it."""
SCHEMA_LINE = "# yaml-language-server: $schema={}\n"
GPU_TYPES, CPU_TYPES = "[g4dn.xlarge, g6.xlarge]", "[c7i.xlarge, c6i.xlarge]"
BF16_TYPES = "[g6.xlarge, g5.xlarge]"
"""The T4 of g4dn does not compute in bfloat16."""
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
        requirements: Packages, or the name of the file that lists them.
        unpinned: Packages whose versions are not known.
        throughput: How it is read, if the script prints one.
        schema: The schema's file for editors.
        file: The recipe, as a shell names it.
        commands: Set-up commands; empty without any.
        path: Folders for PYTHONPATH.
    """

    name: str
    script: Script
    command: str
    files: str
    requirements: Sequence[str] | str
    unpinned: Sequence[str]
    throughput: Throughput | None
    schema: str
    file: str = "FILE"
    commands: str = ""
    path: Sequence[str] = ()

    @property
    def types(self) -> str:
        """The instance types, as a list of YAML."""
        if not self.script.gpu:
            return CPU_TYPES
        return BF16_TYPES if self.script.uses_bf16 else GPU_TYPES

    def text(self) -> str:
        """Return the recipe."""
        return "\n".join(
            [
                SCHEMA_LINE.format(self.schema).rstrip(),
                f"# Written by dlcloud init. dlcloud plan {self.file} shows the cost; dlcloud up {self.file}",
                f"# runs it; dlcloud bench {self.file} --repeats 1 runs it once on each type, side by side.",
                f"name: {json.dumps(self.name)}",
                "",
                "# local rehearses on this machine with the same code: no account, no bill; then: aws",
                "cloud: local",
                "",
                "instances:",
                f"  types: {self.types} # bench: each; on demand in this order, on spot as EC2 chooses",
                *(["  count: {min: 1, max: 3}"] if self.script.is_elastic else []),
                MARKET + (ON_SPOT if self.script.is_elastic else ", spot"),
                "",
                *self._setup(),
                *self._workload(),
                "",
                "# What the command writes in its folder is downloaded; keep.files narrows that.",
                "budget:",
                "  max_hours: 1 # each instance terminates itself then, even if this machine is off",
                "",
            ]
        )

    def _setup(self) -> list[str]:
        lines = ["setup:"]
        if self.commands:
            lines.append(f"  commands: {json.dumps(self.commands)}")
        if isinstance(self.requirements, str):
            lines.append(f"  requirements: {json.dumps(self.requirements)}")
        elif self.requirements or self.unpinned:
            empty = "" if self.requirements else " []"
            lines.append(f"  requirements:{empty} # python3 of the command has them")
            lines += [f"    - {json.dumps(requirement)}" for requirement in self.requirements]
        lines += [f"    # - {name}==  which version? it is not installed here" for name in self.unpinned]
        return [*lines, ""] if len(lines) > 1 else []

    def _workload(self) -> list[str]:
        lines = ["workload:", f"  command: {json.dumps(self.command)}", f"  files: {json.dumps(self.files)}"]
        if self.script.required:
            lines.append(f"  # it requires {', '.join(self.script.required)}: add them to the command")
        if self.path:
            lines.append(f"  environment: {{PYTHONPATH: {json.dumps(':'.join(self.path))}}}")
        if self.script.is_elastic:
            return [*lines, "  elastic: {} # a worker per GPU, or one; they join and leave at any step"]
        if self.script.resumes:
            folders = ", ".join(json.dumps(f"{name}/") for name in self.script.saved if name != "checkpoints")
            lines += [
                f"  resume: auto # after an interruption it continues, by {self.script.resumes}",
                f"  checkpoints: [checkpoints/{folders and f', {folders}'}] # copied away while it runs",
            ]
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
