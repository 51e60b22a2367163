"""Ways to an instance without a public address: an EC2 Instance Connect Endpoint, or Session Manager.

`ssh` connects through what is opened here. An endpoint carries a websocket whose address is signed; a session
is carried by AWS's own session-manager-plugin, which gets its command line and its environment.
Source: aws-cli, customizations/ec2instanceconnect and customizations/sessionmanager (from version 1.2.497 of
the plugin on); EC2 user guide, "EC2 Instance Connect Endpoint".
"""

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.network.vpc import ready_endpoints
from dlcloud.model.errors import CloudError, UnreachableError, install_hint

SERVICE = "ec2-instance-connect"
LONGEST_S = 3600
"""The longest that EC2 keeps a tunnel."""
EXPIRES_S = 60
PIECE = 65_000
"""Bytes a frame, as the AWS CLI sends at most."""
PLUGIN = "session-manager-plugin"
DOCUMENT = "AWS-StartSSHSession"
VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"


class EndpointTunnels:
    """Opens connections to the instances of one region through the endpoints of their VPCs. Thread-safe.

    Args:
        clients: The region's.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._endpoints: dict[str, dict[str, Any]] = {}

    def open(self, instance_id: str, host: str, port: int, timeout_s: float) -> socket.socket:
        """Return a socket that is connected to a port of an instance's private address.

        Raises:
            CloudError: The instance's VPC has no endpoint.
            UnreachableError: The endpoint refuses the tunnel.
            OSError: It cannot be reached.
        """
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException  # noqa: PLC0415  an extra
            from websockets.sync.client import connect  # noqa: PLC0415  as above
        except ImportError as error:
            message = "access: instance-connect-endpoint needs the library websockets"
            raise UnreachableError(message, install_hint("tunnel")) from error
        url = self._signed_url(self._endpoint_of(instance_id), host, port)
        try:
            # It outlives this function: the threads that carry its bytes close it.
            tunnel = connect(url, open_timeout=timeout_s, compression=None, max_size=None, ping_interval=None)
            websocket = tunnel.__enter__()
        except InvalidStatus as error:
            status, body = error.response.status_code, error.response.body or b""
            reason = body[:500].decode("utf-8", "replace").strip()
            raise UnreachableError(
                f"{instance_id}: the endpoint refuses a tunnel to {host} (HTTP {status}): {reason}",
                "the policy must allow ec2-instance-connect:OpenTunnel: dlcloud policy",
            ) from error
        except WebSocketException as error:
            raise ConnectionError(f"the endpoint does not answer as a websocket: {error}") from error
        return _pump(websocket)

    def _endpoint_of(self, instance_id: str) -> dict[str, Any]:
        with self._lock:
            if instance_id not in self._endpoints:
                self._endpoints[instance_id] = self._find_endpoint(instance_id)
            return self._endpoints[instance_id]

    def _find_endpoint(self, instance_id: str) -> dict[str, Any]:
        """Return the endpoint of the instance's subnet, else any of its VPC."""
        with translate_errors(f"looking up {instance_id} (ec2:DescribeInstances)"):
            answer = self._clients.call_until_visible("describe_instances", InstanceIds=[instance_id])
        instance = answer["Reservations"][0]["Instances"][0]
        vpc_id, subnet_id = instance.get("VpcId", ""), instance.get("SubnetId")
        endpoints = ready_endpoints(self._clients, vpc_id)
        if not endpoints:
            raise CloudError(
                f"{vpc_id} has no EC2 Instance Connect Endpoint that is ready",
                f"aws ec2 create-instance-connect-endpoint --subnet-id {subnet_id}",
            )
        return next((entry for entry in endpoints if entry.get("SubnetId") == subnet_id), endpoints[0])

    def _signed_url(self, endpoint: dict[str, Any], host: str, port: int) -> str:
        """Return the address of a tunnel, signed by the credentials for a minute."""
        ec2 = self._clients.get("ec2")
        service = urlsplit(ec2.meta.endpoint_url)
        # The local EC2 answers for its endpoints itself.
        is_local = service.scheme == "http"
        place = service.netloc if is_local else endpoint["DnsName"]
        query = urlencode(
            {
                "instanceConnectEndpointId": endpoint["InstanceConnectEndpointId"],
                "maxTunnelDuration": LONGEST_S,
                "privateIpAddress": host,
                "remotePort": port,
            }
        )
        scheme = "http" if is_local else "https"
        request = AWSRequest(method="GET", url=f"{scheme}://{place}/openTunnel?{query}")
        credentials = self._clients.credentials()
        SigV4QueryAuth(credentials, SERVICE, self._clients.region, expires=EXPIRES_S).add_auth(request)
        return f"{'ws' if is_local else 'wss'}{str(request.url).removeprefix(scheme)}"


def _pump(websocket: Any) -> socket.socket:  # noqa: ANN401  a websocket's connection
    """Return a socket whose bytes go through a websocket, by two threads that end with it."""
    own, others = socket.socketpair()

    def send() -> None:
        with contextlib.suppress(Exception):  # either end may close at any time
            while piece := others.recv(PIECE):
                websocket.send(piece)
        with contextlib.suppress(Exception):
            websocket.close()

    def receive() -> None:
        with contextlib.suppress(Exception):
            for piece in websocket:
                others.sendall(piece)
        with contextlib.suppress(OSError):
            others.shutdown(socket.SHUT_RDWR)
            others.close()

    for work in (send, receive):
        threading.Thread(target=work, name=f"tunnel {work.__name__}", daemon=True).start()
    return own


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
