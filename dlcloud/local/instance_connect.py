"""EC2 Instance Connect: a public key that may log in to an instance for a minute.

Source: EC2 Instance Connect API reference, SendSSHPublicKey.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from dlcloud.local.answers import UnknownAnswerError
from dlcloud.local.machines import Machines, NotRunningError

ADMITTED_S = 60.0


def answer_instance_connect(action: str, asked: Mapping[str, Any], machines: Machines) -> dict[str, Any]:
    """Answer SendSSHPublicKey; any user name will do, as everywhere on the local EC2.

    Raises:
        UnknownAnswerError: The instance is not there, does not run, is elsewhere, or the key is none.
    """
    if action != "SendSSHPublicKey":
        raise UnknownAnswerError("InvalidArgsException", f"The local cloud does not answer {action}.")
    instance_id, key = str(asked.get("InstanceId") or ""), str(asked.get("SSHPublicKey") or "")
    try:
        zone = machines.zone(instance_id)
        if asked.get("AvailabilityZone") not in (None, zone):
            raise UnknownAnswerError("InvalidArgsException", f"{instance_id} is not in this zone.")
        machines.admit_key(instance_id, key, seconds=ADMITTED_S)
    except LookupError as error:
        message = f"There is no instance {instance_id}."
        raise UnknownAnswerError("EC2InstanceNotFoundException", message) from error
    except NotRunningError as error:
        raise UnknownAnswerError("EC2InstanceStateInvalidException", str(error)) from error
    except ValueError as error:
        raise UnknownAnswerError("InvalidArgsException", str(error)) from error
    return {"RequestId": str(uuid.uuid4()), "Success": True}
