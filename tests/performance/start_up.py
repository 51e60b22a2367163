"""How long commands take to start, next to the libraries that they cannot do without.

Prints ratios of whole processes: `dlcloud --help` and `import dlcloud` to `import click`, `dlcloud
status` with a cluster that is up (one DescribeInstances call) to `import boto3` and an EC2 client, and to the
same with that one call.
"""

import json
import subprocess

from common import DLCLOUD, PYTHON, compare, local_home, parser_of, seconds

RECIPE = "name: idle\ncloud: local\ninstances: {types: [c5.large]}\nworkload: {command: 'true', repeats: 1}\n"
CLIENT = "import boto3; c = boto3.client('ec2', region_name='us-east-1', endpoint_url={url!r})"


def main() -> None:
    parser_of(__doc__).parse_args()
    with local_home() as (home, _):
        (home / "idle.yaml").write_text(RECIPE)
        subprocess.run([DLCLOUD, "up", str(home / "idle.yaml"), "--keep"], check=True, capture_output=True)
        status = subprocess.run(
            [DLCLOUD, "local", "status", "-o", "json"], check=True, capture_output=True, text=True
        )
        local = json.loads(status.stdout)["result"]
        client, keys = CLIENT.format(url=local["url"]), local["environment"]
        click = [PYTHON, "-c", "import click"]
        called = f"{client}; c.describe_instances()"
        for name, ours, floor, goal, pairs in (
            ("--help / import click", [DLCLOUD, "--help"], click, 1.5, 31),
            ("import dlcloud / import click", [PYTHON, "-c", "import dlcloud"], click, 1.5, 31),
            ("status / boto3 and an EC2 client", [DLCLOUD, "status"], [PYTHON, "-c", client], 1.15, 21),
            ("status / the same with its one call", [DLCLOUD, "status"], [PYTHON, "-c", called], 1.3, 21),
        ):
            compare(
                name,
                lambda ours=ours: seconds(ours),
                lambda floor=floor: seconds(floor, keys),
                goal=goal,
                pairs=pairs,
            )


if __name__ == "__main__":
    main()
