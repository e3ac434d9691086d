"""Responses of the server: JSON, arrays, errors. Responses of a run never change, so each has an ETag of its bytes.

Arrays travel as: u32 length of the header, the header (JSON: for each field its dtype, shape, and offset), then the
little-endian arrays, each at a multiple of 8 bytes from the start of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from kernbench.common.errors import KernBenchError
from kernbench.common.plain_json import plain_json

_STEP = 8
_KEEP = {"Cache-Control": "no-cache"}  # revalidate; an unchanged response is 304


def json_answer(request: Request, data: object) -> Response:
    body = json.dumps(plain_json(data), separators=(",", ":"), allow_nan=False).encode()
    return _tagged(request, body, "application/json")


def arrays_answer(
    request: Request, about: Mapping[str, object], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> Response:
    return _tagged(request, packed(about, arrays), "application/octet-stream")


def error_answer(error: KernBenchError, status: int) -> Response:
    body = {"schema": 1, "what": error.what, "where": error.where, "hint": error.hint}
    return Response(json.dumps(body).encode(), status_code=status, media_type="application/json")


def bytes_answer(request: Request, body: bytes, media_type: str) -> Response:
    return _tagged(request, body, media_type)


def packed(about: Mapping[str, object], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """A header and arrays as bytes."""
    plain = {name: np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")) for name, a in arrays.items()}
    fields: dict[str, dict[str, object]] = {}
    at = 0
    for name, array in plain.items():
        fields[name] = {"dtype": array.dtype.str[1:], "shape": list(array.shape), "offset": at}
        at += -(-array.nbytes // _STEP) * _STEP
    header = json.dumps(plain_json({**about, "fields": fields}), separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % _STEP)  # so that the first array is aligned to 8 bytes
    parts = [len(header).to_bytes(4, "little"), header]
    for array in plain.values():
        data = array.tobytes()
        parts += [data, bytes(-len(data) % _STEP)]
    return b"".join(parts)


def _tagged(request: Request, body: bytes, media_type: str) -> Response:
    tag = f'"{sha256(body).hexdigest()[:20]}"'
    headers = {**_KEEP, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
