"""The instance metadata service, version 2 only, of one instance: its documents, tokens and notices.

`LocalInstance` opens one at each boot. A request without a token is refused; what it asks for is read from
moto's instance at that moment, so that tags, roles and interruption notices are always those of now.
Source: EC2 user guide, "Instance metadata categories" and "Use the Instance Metadata Service".
"""

import asyncio
import contextlib
import hmac
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any

from dlcloud.local.instance.peers import is_refused_peer
from dlcloud.local.instance.shims import POWER_HEADER, POWER_PATH

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


def metadata_documents(instance: Any, public_key: str | None) -> dict[str, str]:  # noqa: ANN401 - moto's object
    """Return the documents below `latest/meta-data`, by path, as the instance is now.

    Args:
        instance: moto's instance.
        public_key: The public key of its key pair, in OpenSSH's form; None without one.
    """
    card = instance.nics[0]
    values = {
        "ami-id": instance.image_id,
        "ami-launch-index": instance.ami_launch_index,
        "ami-manifest-path": "(unknown)",
        "block-device-mapping/ami": instance.root_device_name,
        "block-device-mapping/root": instance.root_device_name,
        "events/maintenance/history": "[]",
        "events/maintenance/scheduled": "[]",
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": instance.private_ip,
        "mac": card.mac_address,
        "placement/availability-zone": instance.availability_zone,
        "placement/availability-zone-id": instance.placement.availability_zone_id,
        "placement/region": instance.region_name,
        "profile": "default-hvm",
        "public-hostname": instance.public_dns_name,
        "public-ipv4": instance.public_ip,
        "reservation-id": instance.reservation_id,
        "security-groups": _lines(group.name for group in instance.security_groups),
        "services/domain": "amazonaws.com.cn" if instance.region_name.startswith("cn-") else "amazonaws.com",
        "services/partition": "aws-cn" if instance.region_name.startswith("cn-") else "aws",
        "system": "nitro",
    }
    if public_key is not None:
        values |= {"public-keys": f"0={instance.key_name}", "public-keys/0/openssh-key": public_key}
    for one in instance.nics.values():
        prefix = f"network/interfaces/macs/{one.mac_address}"
        values |= {f"{prefix}/{name}": value for name, value in _interface(instance, one).items()}
    if instance.metadata_options.instance_metadata_tags == "enabled":
        values |= {f"tags/instance/{tag['key']}": tag["value"] for tag in instance.get_tags()}
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _interface(instance: Any, card: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's objects
    groups = sorted(card.group_set, key=lambda group: str(group.name))
    vpc = instance.ec2_backend.get_vpc(card.subnet.vpc_id)
    addresses = {
        "public-hostname": instance.public_dns_name,
        "public-ipv4s": card.public_ip,
        f"ipv4-associations/{card.public_ip}": card.private_ip_address,
    }
    return {
        "device-number": card.device_index,
        "interface-id": card.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": card.private_ip_address,
        "mac": card.mac_address,
        "owner-id": card.owner_id,
        "security-group-ids": _lines(group.id for group in groups),
        "security-groups": _lines(group.name for group in groups),
        "subnet-id": card.subnet.id,
        "subnet-ipv4-cidr-block": card.subnet.cidr_block,
        "vpc-id": card.subnet.vpc_id,
        "vpc-ipv4-cidr-block": vpc.cidr_block,
        "vpc-ipv4-cidr-blocks": vpc.cidr_block,
        **(addresses if card.public_ip else {}),
    }


def _lines(texts: Iterator[str]) -> str:
    return "\n".join(texts)


_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105 - a header's name
_TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
_MAX_TTL_S = 21600
_MAX_HEAD = 16384
_MAX_BODY = 1024
_IDLE_S = 60.0
_MOST_CONNECTIONS, _MOST_TOKENS = 64, 1024
_DATED = re.compile(r"\d{4}-\d\d-\d\d")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, its header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class MetadataService:
    """The metadata service of one instance.

    Args:
        documents: Returns the texts by path, at every request: notices come and go.
        power: Carries out an order of the shutdown program.
        secret: Proves that an order comes from the shutdown program.
        instance_users: The user ids of instances' programs.
    """

    documents: Callable[[], Mapping[str, str]]
    power: Callable[[str], None]
    secret: str
    instance_users: range = range(0)
    _tokens: dict[str, float] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _writers: dict[asyncio.StreamWriter, float] = field(default_factory=dict)

    async def open(self, listener: socket.socket) -> None:
        """Answer on a bound socket, which `close` closes even if the opening is cancelled."""
        self._server = await asyncio.start_server(
            self._serve, sock=listener, limit=_MAX_HEAD, start_serving=False
        )
        await self._server.start_serving()

    async def close(self) -> None:
        """Stop answering; open connections are cut."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._writers[writer] = time.monotonic()
        try:
            ends = (writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
            if is_refused_peer(*ends, self.instance_users):
                return
            while request := await asyncio.wait_for(_read(reader), _IDLE_S):
                self._writers[writer] = time.monotonic()
                status, text, extra = self._answer(request)
                writer.write(_encode(status, text, extra))
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("a metadata connection broke off")
        finally:
            self._writers.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _make_room(self) -> None:
        """Cut the connection that has been silent for the longest time, if there are as many as may be."""
        if len(self._writers) >= _MOST_CONNECTIONS:
            writer = min(self._writers, key=self._writers.__getitem__)
            del self._writers[writer]
            writer.transport.abort()

    def _answer(self, request: Request) -> tuple[HTTPStatus, str, Mapping[str, str]]:
        if not _names_address(request.headers.get("host", "")):
            return HTTPStatus.FORBIDDEN, "", {}
        if request.path == POWER_PATH:
            return self._answer_order(request)
        if request.path == _TOKEN_PATH:
            return self._issue_token(request)
        if request.method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "", {}
        ends = self._tokens.get(request.headers.get(_TOKEN_HEADER, ""))
        if ends is None or ends < time.monotonic():
            return HTTPStatus.UNAUTHORIZED, "", {}
        text = _find(self.documents(), request.path)
        return (HTTPStatus.NOT_FOUND, "", {}) if text is None else (HTTPStatus.OK, text, {})

    def _answer_order(self, request: Request) -> tuple[HTTPStatus, str, Mapping[str, str]]:
        secret = request.headers.get(POWER_HEADER.lower(), "")
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return HTTPStatus.FORBIDDEN, "not from this instance", {}
        self.power(request.body.decode())
        return HTTPStatus.OK, "", {}

    def _issue_token(self, request: Request) -> tuple[HTTPStatus, str, Mapping[str, str]]:
        """Issue a session token; a request through a proxy is refused, as on EC2."""
        ttl = request.headers.get(_TTL_HEADER, "")
        if request.method != "PUT":
            return HTTPStatus.METHOD_NOT_ALLOWED, "", {}
        if not ttl.isdigit() or not 1 <= int(ttl) <= _MAX_TTL_S:
            return HTTPStatus.BAD_REQUEST, "", {}
        if "x-forwarded-for" in request.headers:
            return HTTPStatus.FORBIDDEN, "", {}
        while len(self._tokens) >= _MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]  # the oldest
        token = secrets.token_urlsafe(42)
        self._tokens[token] = time.monotonic() + int(ttl)
        return HTTPStatus.OK, token, {_TTL_HEADER: ttl}


def _names_address(host: str) -> bool:
    """True unless a Host header holds a name: a web page whose name was rebound sends that."""
    return host == "" or re.fullmatch(r"localhost(:\d+)?|[\d.]+(:\d+)?", host) is not None


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = int(headers.get("content-length") or 0)
    if not 0 <= length <= _MAX_BODY:
        raise ValueError("a body of this length is not read")
    body = await reader.readexactly(length)
    return Request(method=method, path=target.partition("?")[0], headers=headers, body=body)


def _encode(status: HTTPStatus, text: str, extra: Mapping[str, str]) -> bytes:
    body = text.encode()
    headers = {"Content-Type": "text/plain", "Content-Length": str(len(body)), "Server": "EC2ws", **extra}
    fields = (f"{name}: {value}" for name, value in headers.items())
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _find(documents: Mapping[str, str], path: str) -> str | None:
    """Return a document, or the listing of a folder of documents, as the real service does."""
    version, *parts = [part for part in path.split("/") if part] or [""]
    # Dated versions of the service show what the latest does.
    name = "/".join(["latest" if _DATED.fullmatch(version) else version, *parts])
    if name in documents:
        return documents[name]
    below = [path[len(name) + 1 :] for path in documents if path.startswith(f"{name}/")]
    entries = {f"{path.partition('/')[0]}/" if "/" in path else path for path in below}
    folders = {entry.removesuffix("/") for entry in entries if entry.endswith("/")}
    return "\n".join(sorted(entries - folders)) if entries else None
