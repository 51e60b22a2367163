"""A home whose commands can be killed anywhere, and what is left in EC2 afterwards."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from dlcloud.cloud.account.roles import IamRoles
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.compute.instances import Ec2Instances
from dlcloud.local.site import LocalSite
from dlcloud.model.cluster import CLUSTER_TAG, CONTROLLER_TAG, MANAGED_TAG
from dlcloud.resources.texts import control_policy
from tests.prefork import Daemons

DRIVER = Path(__file__).with_name("driver.py")
ENDED = {"terminated", "shutting-down"}


class Home:
    """One user's home with its local EC2, and the driver that runs commands in it."""

    def __init__(self, folder):
        self.folder = folder
        self.site = LocalSite(folder / "local")
        daemons = Daemons.of_this_process()
        daemons.start(self.site)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        root = str(Path(__file__).parents[2])
        self._driver = subprocess.Popen(
            [sys.executable, str(DRIVER), daemons.address],
            env=environment | {"DLCLOUD_HOME": str(folder), "PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv, kill_at=0, kill_on="", expect=None):
        """Run a command; `kill_at` is the number of the point at which it is killed, `kill_on` its name."""
        order = {"argv": argv, "kill_at": kill_at, "kill_on": kill_on}
        self._driver.stdin.write(json.dumps(order) + "\n")
        self._driver.stdin.flush()
        outcome = json.loads(self._driver.stdout.readline())
        assert expect is None or outcome["status"] == expect, (
            f"{argv}: {outcome['status']}\n{outcome['output']}"
        )
        return outcome

    def alive(self):
        """Return the cluster tags of all instances that cost money."""
        pages = self.ec2.get_paginator("describe_instances").paginate()
        reservations = [reservation for page in pages for reservation in page["Reservations"]]
        instances = [instance for reservation in reservations for instance in reservation["Instances"]]
        return [
            next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == CLUSTER_TAG)
            for instance in instances
            if instance["State"]["Name"] not in ENDED
        ]

    def left(self):
        """Return everything that exists in EC2 beyond what an account has from the start."""
        ec2 = self.ec2
        groups = ec2.describe_security_groups()["SecurityGroups"]
        return {
            "instances": self.alive(),
            "volumes": [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]],
            "groups": [group["GroupName"] for group in groups if group["GroupName"] != "default"],
            "templates": [
                template["LaunchTemplateName"]
                for template in ec2.describe_launch_templates()["LaunchTemplates"]
            ],
            "fleets": [fleet["FleetId"] for fleet in ec2.describe_fleets()["Fleets"]],
            "interfaces": [
                interface["NetworkInterfaceId"]
                for interface in ec2.describe_network_interfaces()["NetworkInterfaces"]
            ],
            "roles": [role["RoleName"] for role in self.iam.list_roles(PathPrefix="/dlcloud/")["Roles"]],
            "profiles": [
                profile["InstanceProfileName"]
                for profile in self.iam.list_instance_profiles(PathPrefix="/dlcloud/")["InstanceProfiles"]
            ],
            "keys": [pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]],
        }

    def size(self, name):
        """Return the size that a cluster was last given by a resize."""
        with sqlite3.connect(self.folder / "store.sqlite") as connection:
            rows = connection.execute(
                "SELECT detail FROM intents JOIN clusters USING (cluster_id)"
                " WHERE name = ? AND action = 'resize' AND state != 'down' ORDER BY intent_id",
                (name,),
            ).fetchall()
        return int(rows[-1][0]) if rows else None

    def forget(self):
        """Lose the laptop: the store and all keys are gone, the cloud is not."""
        for path in self.folder.glob("store.sqlite*"):
            path.unlink()
        subprocess.run(["rm", "-rf", str(self.folder / "clusters")], check=True)

    @cached_property
    def clients(self):
        """Return clients that no test kills."""
        endpoint = self.site.find()
        return Clients(region="us-east-1", endpoint_url=endpoint.url, access_key=endpoint.owner_key())

    @property
    def ec2(self):
        """Return an EC2 client that is never killed."""
        return self.clients.get("ec2")

    @property
    def iam(self):
        """Return an IAM client that is never killed."""
        return self.clients.get("iam")

    def begin_hand_over(self, name, *, in_charge=False):
        """Give a cluster its role, as `up --detach` does, which remembers it before; then the tag, too."""
        with sqlite3.connect(self.folder / "store.sqlite") as connection:
            ((cluster_id, instance_id),) = connection.execute(
                "SELECT cluster_id, instance_id FROM clusters JOIN members USING (cluster_id)"
                " WHERE name = ? AND clusters.state != 'down' LIMIT 1",
                (name,),
            ).fetchall()
            connection.execute(
                "INSERT INTO intents (cluster_id, action, detail, begun_at) VALUES (?, ?, ?, ?)",
                (cluster_id, "hand-over", instance_id, datetime.now(UTC).isoformat()),
            )
        tags = {MANAGED_TAG: "true", CLUSTER_TAG: cluster_id}
        roles = IamRoles(clients=self.clients, control_policy=control_policy, pause=time.sleep)
        profile = roles.put_control(cluster_id, tags)
        Ec2Instances(clients=self.clients, pause=time.sleep).attach_profile(instance_id, profile)
        if in_charge:
            tag = {"Key": CONTROLLER_TAG, "Value": "ubuntu"}
            self.ec2.create_tags(Resources=[instance_id], Tags=[tag])

    def close(self):
        """End the driver and the local EC2."""
        self._driver.stdin.close()
        self._driver.wait(100)
        self.site.stop()
