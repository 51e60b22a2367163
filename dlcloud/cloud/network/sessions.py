"""Connections through Session Manager: a session of EC2's own, carried by AWS's session-manager-plugin.

Source: aws-cli, customizations/sessionmanager: what it passes to the plugin, from version 1.2.497 on.
"""

import json
from collections.abc import Mapping

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors

PLUGIN = "session-manager-plugin"
DOCUMENT = "AWS-StartSSHSession"
VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"


def start_session(
    clients: Clients, instance_id: str, port: int, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Start a session to a port of an instance; return the plugin's command line and its environment.

    The session's token is in the environment, where other users do not see it.

    Raises:
        CredentialsError, CloudError: Systems Manager refuses it, or does not know the instance (yet).
    """
    request = {"Target": instance_id, "DocumentName": DOCUMENT, "Parameters": {"portNumber": [str(port)]}}
    ssm = clients.get("ssm")
    with translate_errors(f"starting a session with {instance_id} (ssm:StartSession)"):
        answer = clients.get("ssm").start_session(**request)
    session = {name: answer[name] for name in ("SessionId", "TokenValue", "StreamUrl")}
    words = [PLUGIN, VARIABLE, clients.region, "StartSession", "", json.dumps(request), ssm.meta.endpoint_url]
    return words, {**environment, VARIABLE: json.dumps(session)}
