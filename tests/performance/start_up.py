"""How long commands take to start, beside the libraries that they cannot do without.

Prints ratios of whole processes: `dlcloud --help` and `import dlcloud` to `import click`, `dlcloud
status` with a cluster that is up (one DescribeInstances call) to `import boto3` and an EC2 client, and to the
same with that one call.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import compare, heading, seconds

PYTHON = sys.executable
DLCLOUD = str(Path(PYTHON).with_name("dlcloud"))
RECIPE = "name: idle\ncloud: local\ninstances: {types: [c5.large]}\nworkload: {command: 'true', repeats: 1}\n"
CLIENT = "import boto3; c = boto3.client('ec2', region_name='us-east-1', endpoint_url={url!r})"


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["DLCLOUD_HOME"] = home
        recipe = Path(home, "idle.yaml")
        recipe.write_text(RECIPE)
        subprocess.run([DLCLOUD, "up", str(recipe), "--keep"], check=True, capture_output=True)
        try:
            measure()
        finally:
            subprocess.run([DLCLOUD, "down", "--all"], check=True, capture_output=True)
            subprocess.run([DLCLOUD, "local", "stop"], check=True, capture_output=True)


def measure() -> None:
    """Print the ratios, with the local EC2 up."""
    status = subprocess.run(
        [DLCLOUD, "local", "status", "-o", "json"], check=True, capture_output=True, text=True
    )
    local = json.loads(status.stdout)["result"]
    client, keys = CLIENT.format(url=local["url"]), local["environment"]
    heading()
    compare(
        "dlcloud --help / import click",
        lambda: seconds([DLCLOUD, "--help"]),
        lambda: seconds([PYTHON, "-c", "import click"]),
        goal=1.5,
        pairs=31,
    )
    compare(
        "import dlcloud / import click",
        lambda: seconds([PYTHON, "-c", "import dlcloud"]),
        lambda: seconds([PYTHON, "-c", "import click"]),
        goal=1.5,
        pairs=31,
    )
    compare(
        "dlcloud status / boto3 and an EC2 client",
        lambda: seconds([DLCLOUD, "status"]),
        lambda: seconds([PYTHON, "-c", client], keys),
        goal=1.15,
        pairs=21,
    )
    compare(
        "dlcloud status / the same with its one call",
        lambda: seconds([DLCLOUD, "status"]),
        lambda: seconds([PYTHON, "-c", f"{client}; c.describe_instances()"], keys),
        goal=1.3,
        pairs=21,
    )


if __name__ == "__main__":
    main()
