"""Every HTTP request to the local EC2 passes through here before moto sees it.

`api/server.py` calls `SiteEndpoint.answer`. A request of a web page is refused, pages under CONTROL_PREFIX go
to `control_pages.py`, and the rest is a call of AWS: who signed it (`_find_caller`), whether the signature
holds, whether the service and action exist; then injected faults and latency, IAM, limits, and names that are
not visible yet. Only then is it carried out, by moto or by what this package has for services that moto
lacks.

A call must never be judged by other values than those that carry it out, nor change anything before it was
allowed. A repeated client token gets the first reply.
"""

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from moto.core.models import DEFAULT_ACCOUNT_ID

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.api.call import (
    Call,
    Refusal,
    Reply,
    ambiguity,
    json_reply,
    judged_request,
    limit_refusal,
    read_call,
)
from dlcloud.local.api.faults import FaultInjector, Visibility
from dlcloud.local.api.server import MOST_UNSIGNED
from dlcloud.local.api.signature import SignatureVerifier
from dlcloud.local.capacity.pools import VcpuQuotas
from dlcloud.local.control import CONTROL_PREFIX
from dlcloud.local.control_pages import ControlPages
from dlcloud.local.ec2.fleets import POOL_ERROR_HEADER, is_pool_error
from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.ec2.services import (
    ACCOUNT_PLAN_SERVICE,
    ServiceError,
    answer_account_plan,
    answer_instance_connect,
    answer_pricing,
    answer_quotas,
)
from dlcloud.local.iam.authorization import (
    Caller,
    call_refusal,
    decode_message,
    find_caller,
    fleet_refusals,
    may_call,
    trust_refusal,
)
from dlcloud.local.instance.addresses import GROUP_ACTIONS
from dlcloud.local.moto_app import Wsgi, unknown_action
from dlcloud.local.s3.calls import S3Call, is_s3, read_s3_call
from dlcloud.local.s3.front import S3Front, error_reply
from dlcloud.local.site_files import AccessKey
from dlcloud.model.instance import Market

_OWN_SERVICES = frozenset({"ec2-instance-connect", ACCOUNT_PLAN_SERVICE, "pricing", "servicequotas"})
_SERVICES = frozenset({"batch", "ec2", "iam", "secretsmanager", "ssm", "sts"}) | _OWN_SERVICES
_LOOPBACK_NAMES = ("localhost", "127.0.0.1")
_NO_CAPACITY = b"<Code>InsufficientInstanceCapacity</Code>"
_POOL_ERROR_KEY = "HTTP_" + POOL_ERROR_HEADER.upper().replace("-", "_")
_ACCOUNT_KEY = "HTTP_X_MOTO_ACCOUNT_ID"  # moto acts in the account that this header names
_TOKENS_KEPT = 512
_MOST_CONTROL = 16 * 1024 * 1024  # traces
_MOST_S3 = 256 * 1024 * 1024  # a part of s5cmd has 50 MiB, of the AWS CLI 8

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class SiteEndpoint:
    """Answers every HTTP request to one site.

    `access_key` is its owner's; what was signed before `since` changes nothing.
    """

    moto: Wsgi
    catalog: Catalog
    instances: SiteInstances
    quotas: VcpuQuotas
    faults: FaultInjector
    pages: ControlPages
    visibility: Visibility
    access_key: AccessKey
    since: datetime

    def __post_init__(self) -> None:
        self._signatures = SignatureVerifier(self.since)
        self._s3 = S3Front()
        self._tokens = _ClientTokens()

    def answer(self, environ: dict[str, Any]) -> Reply:
        """Answer one request, given as WSGI's environment."""
        # User data runs as the user: a web page that guesses the port must not get that far.
        if "HTTP_ORIGIN" in environ or not _names_loopback(environ.get("HTTP_HOST", "")):
            return json_reply(HTTPStatus.FORBIDDEN, {"error": "this address is for programs of this machine"})
        if environ["PATH_INFO"].startswith(CONTROL_PREFIX):
            return json_reply(*self.pages.answer(environ))
        environ.pop(_ACCOUNT_KEY, None)
        if is_s3(environ):
            return self._answer_s3(environ)
        return self._answer_query(environ)

    def allow_body(self, environ: dict[str, Any]) -> int | Reply:
        """Return how many bytes a request may bring, by its headers alone, or the answer that refuses it."""
        if environ["PATH_INFO"].startswith(CONTROL_PREFIX):
            return _MOST_CONTROL if self.pages.is_known(environ) else MOST_UNSIGNED
        if not is_s3(environ):
            return MOST_UNSIGNED
        call = read_s3_call(environ, b"")
        _, secret = self._find_caller(call.access_key)
        return self._s3.head_refusal(call, environ, secret) or _MOST_S3

    def _answer_query(self, environ: dict[str, Any]) -> Reply:
        """Answer a request to any service but S3."""
        call = read_call(environ)
        caller, secret = self._find_caller(call.access_key)
        refusal = self._signatures.refusal(call, environ, secret)
        if refusal is not None:
            return refusal.reply_to(call)
        if call.service not in _SERVICES:
            message = f"The local cloud has no service {call.service!r}."
            return Refusal(code="UnknownService", message=message).reply_to(call)
        if environ["PATH_INFO"] != "/" and not (call.service == "batch" and call.action):
            # All other services answer there; the rest would be moto's own pages.
            return Refusal(code="UnknownPath", message="The local EC2 answers at /.", status=404).reply_to(
                call
            )
        fault = ambiguity(call, environ) or unknown_action(call)
        if fault:
            return Refusal(code="InvalidRequest", message=fault).reply_to(call)
        account = caller.account if caller else DEFAULT_ACCOUNT_ID
        return self._answer_call(call, caller, {**judged_request(call, environ), _ACCOUNT_KEY: account})

    def _find_caller(self, access_key: str) -> tuple[Caller | None, str | None]:
        """Return the caller and the secret of an access key; no caller for the owner, neither for others."""
        if access_key == self.access_key.key_id:
            return None, self.access_key.secret
        caller = find_caller(access_key)
        return caller, caller.secret if caller else None

    def _answer_s3(self, environ: dict[str, Any]) -> Reply:
        call = read_s3_call(environ, environ["wsgi.input"].read())
        caller, secret = self._find_caller(call.access_key)
        refused = self._s3.refusal(call, environ, secret)
        if refused is not None:
            return refused
        reply = self._answer_call(call, caller, environ)
        is_missing = reply.status == HTTPStatus.NOT_FOUND and bool(call.key) and call.is_reading
        if is_missing and caller is not None and not may_call(caller, call.list_request()):
            return error_reply(call, "AccessDenied", "Access Denied", HTTPStatus.FORBIDDEN)
        return self._s3.with_region(call, reply)

    def _answer_call(self, call: Call, caller: Caller | None, environ: dict[str, Any]) -> Reply:
        """Answer a call; without a caller it is the owner's."""
        if self.faults.latency_s > 0:
            time.sleep(self.faults.latency_s)
        fault = self.faults.count_call(call.action, dry_run=call.parameter("DryRun") == "true")
        if fault is None:
            return self._answer_allowed(call, caller, environ, {})
        message = "The local cloud was asked to refuse this call."
        refused = Refusal(status=fault.status, code=fault.code, message=message)
        if call.action == "CreateFleet" and is_pool_error(fault.code):
            return self._answer_allowed(call, caller, environ, dict.fromkeys(Market, refused))
        if fault.carried_out:
            self._answer_allowed(call, caller, environ, {})
        return refused.reply_to(call)

    def _answer_allowed(
        self, call: Call, caller: Caller | None, environ: dict[str, Any], pool_errors: dict[Market, Refusal]
    ) -> Reply:
        """Answer a call if its caller may make it; `pool_errors` are of the pools of a fleet."""
        refusal = (
            (caller and call_refusal(call, caller))
            or trust_refusal(call, caller.arn if caller else "", environ.get(_ACCOUNT_KEY, ""))
            or limit_refusal(call)
            or self.visibility.refusal(call)
        )
        if refusal is not None:
            return refusal.reply_to(call)
        if caller is not None:
            pool_errors |= fleet_refusals(call, caller)
        if pool_errors:
            environ[_POOL_ERROR_KEY] = json.dumps(
                {market: (error.code, error.message) for market, error in pool_errors.items()}
            )
        if (call.service, call.action) == ("sts", "DecodeAuthorizationMessage"):
            return _decoded(call)
        token = call.parameter("ClientToken") if call.service == "ec2" else ""
        if not token or call.parameter("DryRun") == "true":
            reply = self._carry_out(call, environ)
        else:
            account = environ[_ACCOUNT_KEY]
            reply = self._tokens.once(account, token, call, lambda: self._carry_out(call, environ))
        self.visibility.record(call, reply)
        if call.service == "ec2" and call.action in GROUP_ACTIONS:
            self.instances.apply_security_groups()
        return reply

    def _carry_out(self, call: Call, environ: dict[str, Any]) -> Reply:
        if call.service not in _OWN_SERVICES:
            return self._call_moto(call, environ)
        try:
            request = json.loads(call.body or b"{}")
            if call.service == "pricing":
                answer = answer_pricing(call.action, request, self.catalog)
            elif call.service == "ec2-instance-connect":
                answer = answer_instance_connect(call.action, request, self.instances, environ[_ACCOUNT_KEY])
            elif call.service == ACCOUNT_PLAN_SERVICE:
                answer = answer_account_plan(call.action, self.quotas.account_plan)
            else:
                answer = answer_quotas(call.action, request, self.quotas.limits())
        except ServiceError as error:
            return Refusal(code=error.code, message=error.message).reply_to(call)
        return json_reply(HTTPStatus.OK, answer)

    def _call_moto(self, call: Call, environ: dict[str, Any]) -> Reply:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
            log.debug("moto answers %s%s", status, " after an exception" if exc_info else "")
            started.append((status, headers))

        try:
            if isinstance(call, S3Call):
                return self._s3.answer(environ)
            body = b"".join(self.moto(environ, start_response))
        except NotImplementedError as error:
            message = f"The local EC2 does not implement {call.service}:{call.action} as asked: {error}"
            return Refusal(code="UnsupportedOperation", message=message).reply_to(call)
        except Exception as error:
            # A server error would make stock clients try five times.
            log.exception("moto failed at %s:%s", call.service, call.action)
            message = (
                f"The local EC2 cannot carry out {call.service}:{call.action} with these parameters "
                f"({type(error).__name__}: {error}); see its daemon.log."
            )
            return Refusal(code="UnsupportedOperation", message=message).reply_to(call)
        status, headers = started[-1]
        code = int(status.split(" ", 1)[0])
        # EC2 answers that it has no capacity with a server error, which makes stock clients try again.
        code = 500 if code == HTTPStatus.BAD_REQUEST and _NO_CAPACITY in body else code
        return Reply(status=code, headers=tuple(headers), body=body)


def _decoded(call: Call) -> Reply:
    content = decode_message(call.parameter("EncodedMessage"))
    if content is None:
        message = "Message is invalid"
        return Refusal(code="InvalidAuthorizationMessageException", message=message).reply_to(call)
    text = f"<DecodedMessage>{escape(json.dumps(content))}</DecodedMessage>"
    body = f"<{call.action}Response><{call.action}Result>{text}</{call.action}Result></{call.action}Response>"
    return Reply(status=HTTPStatus.OK, headers=(("Content-Type", "text/xml"),), body=body.encode())


def _names_loopback(host: str) -> bool:
    """True if a Host header names this machine; that of a page whose name was rebound to it does not."""
    name = host.rpartition(":")[0] if ":" in host else host
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


@dataclass(slots=True, kw_only=True)
class _TokenUse:
    """The digest of a request with a client token, and its reply once there is one."""

    digest: bytes
    reply: Reply | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class _ClientTokens:
    """The latest client tokens by account, region and action: a repeated request gets its first reply."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: OrderedDict[tuple[str, str, str, str], _TokenUse] = OrderedDict()

    def once(self, account: str, token: str, call: Call, answer: Callable[[], Reply]) -> Reply:
        """Answer a call, or repeat the reply of the first with its token; other parameters are refused.

        Only a success is kept: a refused request may be repeated with its token.
        """
        key = (account, call.region, call.action, token)
        digest = hashlib.sha256(repr(sorted(call.parameters)).encode()).digest()
        with self._lock:
            use = self._uses.setdefault(key, _TokenUse(digest=digest))
            self._uses.move_to_end(key)
            while len(self._uses) > _TOKENS_KEPT:
                self._uses.popitem(last=False)
        with use.lock:
            if use.reply is None:
                use.digest = digest
                reply = answer()
                use.reply = reply if reply.status < HTTPStatus.MULTIPLE_CHOICES else None
                return reply
            if use.digest == digest:
                return use.reply
        message = "The client token was used before, with other parameters."
        return Refusal(code="IdempotentParameterMismatch", message=message).reply_to(call)
