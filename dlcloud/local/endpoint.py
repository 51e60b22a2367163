"""The WSGI layer before moto: faults, latency, client tokens, our own answers, and the control pages."""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from dlcloud.local.answers import UnknownAnswerError, answer_price_list, answer_quotas
from dlcloud.local.call import Call, read_call
from dlcloud.local.catalogue import Catalogue
from dlcloud.local.control import CONTROL_PREFIX
from dlcloud.local.control_pages import ControlPages
from dlcloud.local.faults import Disturbances, Fault
from dlcloud.local.idempotency import ClientTokens, Reply
from dlcloud.local.instance_connect import answer_instance_connect
from dlcloud.local.machines import Machines
from dlcloud.local.quotas import VcpuQuotas
from dlcloud.local.roles import InstanceRoles

_OWN_SERVICES = frozenset({"ec2-instance-connect", "pricing", "servicequotas"})
_SERVICES = frozenset({"ec2", "ssm", "sts", "iam"}) | _OWN_SERVICES
_LOOPBACK_NAMES = ("localhost", "127.0.0.1")
_NO_CAPACITY = b"<Code>InsufficientInstanceCapacity</Code>"
_JSON = "application/x-amz-json-1.1"

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

log = logging.getLogger(__name__)


class Endpoint:
    """The WSGI application of one site.

    Args:
        books: moto's application.
        catalogue: What instance types cost.
        machines: The instances, for those who want in.
        roles: What instances may do.
        disturbances: What calls meet on the way.
        pages: The control pages.
        pool_errors: Codes that a fleet reports pool by pool, and the header that tells it so.
    """

    def __init__(
        self,
        *,
        books: Wsgi,
        catalogue: Catalogue,
        machines: Machines,
        roles: InstanceRoles,
        quotas: VcpuQuotas,
        disturbances: Disturbances,
        pages: ControlPages,
        pool_errors: tuple[frozenset[str], str],
    ) -> None:
        self._books = books
        self._catalogue = catalogue
        self._machines = machines
        self._roles = roles
        self._quotas = quotas
        self._disturbances = disturbances
        self._pages = pages
        self._pool_codes, header = pool_errors
        self._pool_key = "HTTP_" + header.upper().replace("-", "_")
        self._tokens = ClientTokens()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        reply = self._reply(environ)
        start_response(f"{reply.status} {_phrase(reply.status)}", list(reply.headers))
        return [reply.body]

    def _reply(self, environ: dict[str, Any]) -> Reply:
        # User data runs as the user: a web page that guesses the port must not get that far.
        if "HTTP_ORIGIN" in environ or not _names_loopback(environ.get("HTTP_HOST", "")):
            return _json_reply(
                HTTPStatus.FORBIDDEN, {"error": "this address is for programs of this machine"}
            )
        if environ["PATH_INFO"].startswith(CONTROL_PREFIX):
            status, content = self._pages.answer(environ)
            return _json_reply(status, content)
        environ.pop(self._pool_key, None)
        call = read_call(environ)
        if call.service not in _SERVICES:
            return _refusal(call, 400, "UnknownService", f"The local cloud has no service {call.service!r}.")
        return self._disturbed(call, environ)

    def _disturbed(self, call: Call, environ: dict[str, Any]) -> Reply:
        """Answer a call after what it meets on the way."""
        if self._disturbances.latency_s > 0:
            time.sleep(self._disturbances.latency_s)
        fault = self._disturbances.meet(call.action)
        if fault is not None:
            if call.action != "CreateFleet" or fault.code not in self._pool_codes:
                return _fault_reply(call, fault)
            environ[self._pool_key] = fault.code
        denial = self._roles.denial(call)
        if denial is not None:
            return _refusal(call, denial.status, denial.code, denial.message)
        token = call.parameter("ClientToken") if call.service == "ec2" else ""
        if not token or call.parameter("DryRun") == "true":
            return self._answer(call, environ)
        key = (call.region, call.action, token)
        reply = self._tokens.once(key, call.parameters, lambda: self._answer(call, environ))
        if reply is None:
            text = "The client token was used before, with other parameters."
            return _refusal(call, 400, "IdempotentParameterMismatch", text)
        return reply

    def _answer(self, call: Call, environ: dict[str, Any]) -> Reply:
        if call.service not in _OWN_SERVICES:
            return self._ask_books(call, environ)
        try:
            asked = json.loads(call.body or b"{}")
            if call.service == "pricing":
                answer = answer_price_list(call.action, asked, self._catalogue)
            elif call.service == "ec2-instance-connect":
                answer = answer_instance_connect(call.action, asked, self._machines)
            else:
                answer = answer_quotas(call.action, asked, self._quotas.limits())
        except UnknownAnswerError as error:
            return _refusal(call, 400, error.code, error.message)
        return _json_reply(HTTPStatus.OK, answer)

    def _ask_books(self, call: Call, environ: dict[str, Any]) -> Reply:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
            log.debug("moto answers %s%s", status, " after an exception" if exc_info else "")
            started.append((status, headers))

        try:
            body = b"".join(self._books(environ, start))
        except Exception:
            log.exception("moto failed")
            return _refusal(call, 500, "InternalError", "The local cloud failed; see its daemon.log.")
        status, headers = started[-1]
        code = int(status.split(" ", 1)[0])
        # EC2 says that it has no capacity with a server error, which makes stock clients try again.
        code = 500 if code == HTTPStatus.BAD_REQUEST and _NO_CAPACITY in body else code
        return Reply(status=code, headers=tuple(headers), body=body)


def _names_loopback(host: str) -> bool:
    """Tell whether a Host header names this machine; a page whose name was rebound to it does not."""
    name = host.rpartition(":")[0] if ":" in host else host
    return name in _LOOPBACK_NAMES


def _fault_reply(call: Call, fault: Fault) -> Reply:
    return _refusal(call, fault.status, fault.code, "The local cloud was asked to refuse this call.")


def _refusal(call: Call, status: int, code: str, message: str) -> Reply:
    """Return an error in the form that the service's clients read."""
    if call.is_json:
        return _json_reply(status, {"__type": code, "message": message})
    detail = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if call.service == "ec2":
        request_id = f"<RequestID>{uuid.uuid4()}</RequestID>"
        text = f"<Response><Errors><Error>{detail}</Error></Errors>{request_id}</Response>"
    else:
        text = f"<ErrorResponse><Error><Type>Sender</Type>{detail}</Error></ErrorResponse>"
    return Reply(status=status, headers=(("Content-Type", "text/xml;charset=UTF-8"),), body=text.encode())


def _json_reply(status: int, content: Mapping[str, Any]) -> Reply:
    return Reply(status=int(status), headers=(("Content-Type", _JSON),), body=json.dumps(content).encode())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
