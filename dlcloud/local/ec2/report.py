"""An instance as the status page of the local EC2 shows it."""

from dlcloud.local.ec2.record import InstanceRecord
from dlcloud.local.instance.local_instance import LocalInstance
from dlcloud.model.instance import Market


def report_instance(record: InstanceRecord, instance: LocalInstance) -> dict[str, object]:
    """Return an instance as plain values."""
    return {
        "instance_id": record.instance_id,
        "instance_type": record.pool.instance_type,
        "zone": record.pool.zone,
        "state": record.state.value,
        "spot": record.market is Market.SPOT,
        "host": instance.listeners.host,
        "ssh_port": instance.listeners.ssh_port,
        "metadata_port": instance.listeners.metadata_port,
        "launched_at": record.launched_at.isoformat(),
        "folder": str(instance.root),
    }
