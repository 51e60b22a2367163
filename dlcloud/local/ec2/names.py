"""The names of running instances: in an SSH configuration for their owner, and in their /etc/hosts."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from dlcloud.local.ec2.record import InstanceRecord
from dlcloud.local.instance.hosts import hosts_line
from dlcloud.local.instance.local_instance import LocalInstance
from dlcloud.system.files import write_file


def write_ssh_config(path: Path, instances: Sequence[tuple[InstanceRecord, LocalInstance]]) -> None:
    """Write the configuration and, beside it, the host keys; a full disk is no reason to end."""
    blocks = [
        f"Host {' '.join(record.names())}\n"
        f"  HostName {instance.listeners.host}\n"
        f"  Port {instance.listeners.ssh_port}\n"
        f"  HostKeyAlias {record.instance_id}\n"
        for record, instance in instances
    ]
    keys = [f"{record.instance_id} {instance.public_host_key}\n" for record, instance in instances]
    known_hosts = path.with_name("known_hosts")
    general = f'Host i-* ip-* ec2-*\n  UserKnownHostsFile "{known_hosts}"\n'
    with contextlib.suppress(OSError):
        write_file(known_hosts, "".join(keys))
        write_file(path, "".join([*blocks, general]))


def share_names(instances: Sequence[tuple[InstanceRecord, LocalInstance]]) -> None:
    """Let the DNS names of instances resolve on all of them."""
    lines = [hosts_line(instance.listeners.host, record.names()[1:]) for record, instance in instances]
    for _, instance in instances:
        instance.container.write_hosts(lines)
