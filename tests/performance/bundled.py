"""Run bundled benchmarks as on an instance, in the environments that instances build."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(name: str) -> str:
    """Return the interpreter with a benchmark's packages, built by the program that instances use."""
    built = subprocess.run(
        [sys.executable, ROOT / "templates/environment.py", f"performance-{name}"],
        input=(ROOT / f"dlcloud/benchmarks/requirements/{name}.txt").read_text(),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(built.stdout.splitlines()[-1])["python"]


def records_of(python: str, benchmark: str, arguments: list[str]) -> list[dict]:
    """Run a benchmark and return its records; those that it has if it fails, which is printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        command = [python, "-m", f"benchmarks.{benchmark}", "--output", path, *arguments]
        done = subprocess.run(command, cwd=ROOT / "dlcloud", check=False, stdout=sys.stderr)
        if done.returncode:
            print(f"{benchmark}: status {done.returncode}; what it could not measure is missing below")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
