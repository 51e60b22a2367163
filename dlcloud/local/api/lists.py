"""Lists in the parameters of EC2 calls, which some clients count from 0 (Libcloud) and EC2 takes so."""

import re
from dataclasses import replace
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dlcloud.local.api.call import Call

_ITEM = re.compile(r"(\w+)\.(\d+)(\..*)?")

_Pairs = list[tuple[str, str]]


def count_from_one(call: Call, environ: dict[str, Any]) -> Call:
    """Return a call with lists that begin at 1, as moto reads them; its WSGI request is changed, too."""
    pairs = list(call.parameters)
    zeros = {match[1] for name, _ in pairs if (match := _ITEM.fullmatch(name)) and match[2] == "0"}
    if not zeros or call.service != "ec2" or call.is_json:
        return call
    query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    form = parse_qsl(call.body.decode("utf-8", errors="replace"), keep_blank_values=True)
    body = urlencode(_shift(form, zeros)).encode()
    environ["QUERY_STRING"] = urlencode(_shift(query, zeros))
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = BytesIO(body), str(len(body))
    return replace(call, body=body, parameters=tuple(_shift(pairs, zeros)))


def _shift(pairs: _Pairs, lists: set[str]) -> _Pairs:
    shifted = []
    for name, value in pairs:
        match = _ITEM.fullmatch(name)
        if match and match[1] in lists:
            shifted.append((f"{match[1]}.{int(match[2]) + 1}{match[3] or ''}", value))
        else:
            shifted.append((name, value))
    return shifted
