"""What an instance is and what EC2 announces to it, as its metadata service shows them."""

import json
from dataclasses import dataclass
from datetime import datetime

_ISO = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The properties of an instance that its own services show; fixed at its launch."""

    instance_id: str
    instance_type: str
    image_id: str
    region: str
    zone: str
    account_id: str
    architecture: str
    launched_at: datetime
    user_data: bytes
    public_key: str | None

    def document(self, private_ip: str) -> dict[str, str | None]:
        """Return the instance identity document."""
        absent = ("billingProducts", "devpayProductCodes", "kernelId", "marketplaceProductCodes", "ramdiskId")
        return {
            **dict.fromkeys(absent),
            "accountId": self.account_id,
            "architecture": self.architecture,
            "availabilityZone": self.zone,
            "imageId": self.image_id,
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "pendingTime": self.launched_at.strftime(_ISO),
            "privateIp": private_ip,
            "region": self.region,
            "version": "2017-09-30",
        }


@dataclass(slots=True, kw_only=True)
class Notices:
    """Announcements of EC2 to an instance."""

    ends_at: datetime | None = None
    rebalance_at: datetime | None = None

    def documents(self) -> dict[str, str]:
        """Return the metadata documents that announce them, by path."""
        documents = {}
        if self.ends_at is not None:
            action = {"action": "terminate", "time": self.ends_at.strftime(_ISO)}
            documents["spot/instance-action"] = json.dumps(action)
            documents["spot/termination-time"] = action["time"]
        if self.rebalance_at is not None:
            notice = {"noticeTime": self.rebalance_at.strftime(_ISO)}
            documents["events/recommendations/rebalance"] = json.dumps(notice)
        return documents
