"""Credentials of the roles of instances, for the metadata service. Importing this imports moto."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

from moto.sts.models import AssumedRole, sts_backends

from dlcloud.local.iam.access import PARTITION
from dlcloud.local.iam.authorization import session_end

# Source: IAM user guide, "Use an IAM role to grant permissions to applications running on EC2 instances".
SESSION_S = 6 * 3600.0
_ISO = "%Y-%m-%dT%H:%M:%SZ"


class InstanceRoles:
    """The sessions of instances. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.session_s = SESSION_S
        self._lock = threading.Lock()
        # The newest session and its beginning, by instance and role.
        self._newest: dict[tuple[str, str], tuple[AssumedRole, datetime]] = {}

    def documents(self, instance_id: str, profile: Any) -> dict[str, str]:  # noqa: ANN401 - moto's object
        """Return the metadata documents below `iam/` of an instance with a profile, or with None.

        Source: EC2 user guide, "Instance metadata categories": iam/info, iam/security-credentials/role-name.
        """
        if profile is None:
            return {}
        info = {"Code": "Success", "InstanceProfileArn": profile.arn, "InstanceProfileId": profile.id}
        info["LastUpdated"] = profile.create_date.strftime(_ISO)
        documents = {"iam/info": json.dumps(info)}
        for role in profile.roles:
            session, begun_at = self._instance_session(instance_id, role)
            credentials = {
                "Code": "Success",
                "LastUpdated": begun_at.strftime(_ISO),
                "Type": "AWS-HMAC",
                "AccessKeyId": session.access_key_id,
                "SecretAccessKey": session.secret_access_key,
                "Token": session.session_token,
                "Expiration": session_end(session).strftime(_ISO),
            }
            documents[f"iam/security-credentials/{role.name}"] = json.dumps(credentials)
        return documents

    def _instance_session(self, instance_id: str, role: Any) -> tuple[AssumedRole, datetime]:  # noqa: ANN401
        """Return the session of an instance and its beginning; a new one when half of its time has passed."""
        now = datetime.now(UTC)
        with self._lock:
            newest = self._newest.get((instance_id, role.arn))
            if newest is None or session_end(newest[0]) - now < (session_end(newest[0]) - newest[1]) / 2:
                session = sts_backends[role.account_id][PARTITION].assume_role(
                    region_name="us-east-1",
                    role_session_name=instance_id,
                    role_arn=role.arn,
                    policy="",
                    duration=int(self.session_s),
                    external_id="",
                )
                newest = self._newest[instance_id, role.arn] = (session, now)
            return newest
