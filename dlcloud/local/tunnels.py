"""Tunnels of EC2 Instance Connect Endpoints: signed websockets that end at an instance's SSH server.

Source: aws-cli, customizations/ec2instanceconnect; EC2 user guide, "Permissions for EC2 Instance Connect
Endpoint". Importing this imports moto.
"""

import contextlib
import hmac
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.ec2.models import ec2_backends
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from dlcloud.local.api.policy import AccessRequest
from dlcloud.local.api.signature import SignatureError, read_claim, verify_claim
from dlcloud.local.ec2.network import endpoints_of
from dlcloud.local.iam.access import PARTITION
from dlcloud.local.iam.authorization import Caller, find_caller, may_call
from dlcloud.local.instance.addresses import connect_inside
from dlcloud.local.site_files import AccessKey
from dlcloud.model.instance import SSH_PORT

PATH = "/openTunnel"
ACTION = "ec2-instance-connect:OpenTunnel"
SERVICE = "ec2-instance-connect"
REMOTE_PORTS = (SSH_PORT, 3389)
LONGEST_S = 3600
_PIECE = 1 << 16


class Refused(Exception):  # noqa: N818  it is an answer
    """The endpoint refuses the tunnel, with a status of HTTP."""

    def __init__(self, *, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnels:
    """The endpoints' side of tunnels.

    Args:
        access_key: The owner's.
    """

    access_key: AccessKey

    def serve(self, environ: Mapping[str, Any], raw: bytes, client: socket.socket) -> None:
        """Answer a request for a tunnel, and carry bytes until either side ends.

        Args:
            environ: The request as WSGI's environment.
            raw: Its line and headers as they were sent.
            client: The connection that it came on.
        """
        protocol = ServerProtocol(max_size=None)
        protocol.receive_data(raw)
        requests = [event for event in protocol.events_received() if isinstance(event, Request)]
        instance: socket.socket | None = None
        try:
            instance = self._connect(environ)
            response = protocol.accept(requests[0]) if requests else protocol.reject(400, "no websocket\n")
        except Refused as refused:
            response = protocol.reject(refused.status, f"{refused.message}\n")
        protocol.send_response(response)
        _flush(protocol, client)
        if instance is not None:
            _carry(protocol, client, instance)

    def _connect(self, environ: Mapping[str, Any]) -> socket.socket:
        values = dict(parse_qsl(environ["QUERY_STRING"]))
        region, caller = self._verify(environ, values)
        endpoint = endpoints_of(ACCOUNT, region).get(values.get("instanceConnectEndpointId", ""))
        if endpoint is None:
            raise Refused(status=404, message="there is no such instance connect endpoint")
        host, port, duration = (
            values.get(key, "") for key in ("privateIpAddress", "remotePort", "maxTunnelDuration")
        )
        if not port.isdigit() or (duration and not 1 <= int(duration) <= LONGEST_S):
            raise Refused(status=400, message=f"remotePort {port!r} or maxTunnelDuration is invalid")
        if caller is not None:
            _authorize(caller, region, values, endpoint)
        instance = _instance_at(region, host)
        if instance is None or instance.vpc_id != endpoint["VpcId"]:
            raise Refused(status=400, message=f"{host} is not an address of {endpoint['VpcId']}")
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        own_port = int(tags.get("dlcloud:ssh-port", SSH_PORT))
        if int(port) not in (*REMOTE_PORTS, own_port):
            raise Refused(status=400, message=f"remotePort is one of {REMOTE_PORTS}")
        try:
            return connect_inside(host, own_port)
        except OSError as error:
            raise Refused(status=502, message=f"{host} does not answer: {error.strerror}") from error

    def _verify(self, environ: Mapping[str, Any], values: Mapping[str, str]) -> tuple[str, Caller | None]:
        """Return the region of a signature in the query that is right, and who signed; None for the owner."""
        try:
            claim = read_claim(environ)
            caller, secret = None, self.access_key.secret
            if claim.key_id != self.access_key.key_id:
                caller, secret = _find_caller(claim.key_id, values.get("X-Amz-Security-Token", ""))
            if claim.lifetime is None or claim.service != SERVICE:
                raise Refused(status=403, message="the request is not signed by its query")
            verify_claim(claim, environ, secret, path=PATH, payload=sha256(b"").hexdigest())
        except SignatureError as error:
            raise Refused(status=403, message=f"the signature is wrong: {error}") from error
        return claim.region, caller


def _find_caller(key_id: str, token: str) -> tuple[Caller, str]:
    caller = find_caller(key_id)
    if caller is None or not hmac.compare_digest(caller.token.encode(), token.encode()):
        raise Refused(status=403, message="the access key is not one of this local EC2")
    if caller.ends_at is not None and datetime.now(UTC) >= caller.ends_at:
        raise Refused(status=403, message="the security token is expired")
    return caller, caller.secret


def _authorize(caller: Caller, region: str, values: Mapping[str, str], endpoint: Mapping[str, Any]) -> None:
    endpoint_id = endpoint["InstanceConnectEndpointId"]
    arn = f"arn:{PARTITION}:ec2:{region}:{ACCOUNT}:instance-connect-endpoint/{endpoint_id}"
    context = {
        "ec2-instance-connect:remotePort": [values["remotePort"]],
        "ec2-instance-connect:privateIpAddress": [values["privateIpAddress"]],
        **{f"aws:ResourceTag/{tag['Key']}": [tag["Value"]] for tag in endpoint["Tags"]},
    }
    if not may_call(caller, AccessRequest(action=ACTION, resource=arn, context=context)):
        message = f"User: {caller.arn} is not authorized to perform: {ACTION} on resource: {arn}"
        raise Refused(status=403, message=message)


def _instance_at(region: str, host: str) -> Any | None:  # noqa: ANN401 - moto's object
    """Return the running instance with a private address."""
    reservations = list(ec2_backends[ACCOUNT][region].reservations.values())
    return next(
        (
            instance
            for reservation in reservations
            for instance in reservation.instances
            if instance.private_ip == host and instance.state in {"pending", "running"}
        ),
        None,
    )


def _flush(protocol: ServerProtocol, client: socket.socket) -> None:
    for data in protocol.data_to_send():
        if data:
            client.sendall(data)
        else:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)


def _carry(protocol: ServerProtocol, client: socket.socket, instance: socket.socket) -> None:
    """Carry bytes between a websocket and an instance; a thread carries the instance's."""
    client.settimeout(None)
    lock = threading.Lock()

    def answer() -> None:
        with contextlib.suppress(Exception):  # either end may close at any time
            while piece := instance.recv(_PIECE):
                with lock:
                    protocol.send_binary(piece)
                    _flush(protocol, client)
        with contextlib.suppress(Exception), lock:
            protocol.send_close(1000)
            _flush(protocol, client)

    threading.Thread(target=answer, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := client.recv(_PIECE):
            with lock:
                protocol.receive_data(data)
                frames = protocol.events_received()
                _flush(protocol, client)
            for frame in frames:
                if getattr(frame, "opcode", None) in {Opcode.BINARY, Opcode.CONT}:
                    instance.sendall(frame.data)
    with contextlib.suppress(OSError):
        instance.close()
