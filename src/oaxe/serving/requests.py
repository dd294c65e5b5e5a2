"""What is asked for: the fields of LibreTranslate and ours, as JSON or as a form."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from starlette.formparsers import MultiPartException
from starlette.requests import Request

from oaxe.serving.errors import RefusedError
from oaxe.serving.limits import Limits
from oaxe.support.errors import did_you_mean

EXAMPLE = '{"q": "A sentence.", "source": "en", "target": "de"}'
JSON_TYPE = "application/json"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
IGNORED = {"secret"}  # of LibreTranslate's own page
MAX_ALTERNATIVES = 20


@dataclass(frozen=True)
class Wanted:
    """The fields of a request; only ``q`` must be there."""

    q: str | list[str]
    source: str | None = None
    target: str | None = None
    format: str = "text"
    alternatives: int = 0
    api_key: str | None = None
    model: str | None = None
    split: bool = True
    details: bool = False

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q

    @property
    def most(self) -> int | None:
        """Hypotheses that the answer needs of each sentence; None: all."""
        return None if self.alternatives or self.details else 1


KNOWN = [field.name for field in fields(Wanted)]


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, if it arrives whole, in time, and is not too large."""
    message = f"at most {limits.bytes} bytes; send several requests"
    if int(request.headers.get("content-length", "0")[:18]) > limits.bytes:
        raise RefusedError(413, message, Connection="close")
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(limits.seconds):
            while more:
                piece = await request.receive()
                if piece["type"] == "http.disconnect":
                    raise RefusedError(400, "the client hung up")
                body += piece["body"]
                more = piece["more_body"]
                if len(body) > limits.bytes:
                    raise RefusedError(413, message, Connection="close")
    except TimeoutError:
        slow = f"the request took more than {limits.seconds:g} seconds to arrive"
        raise RefusedError(408, slow, Connection="close") from None
    return bytes(body)


async def read_request(request: Request, limits: Limits) -> Wanted:
    """What a request asks for; it is refused where that is not clear, or too much."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != JSON_TYPE and kind not in FORM_TYPES:
        raise RefusedError(
            415,
            f"the content type is {kind or 'missing'}; send {JSON_TYPE} or a form",
            Accept=", ".join((JSON_TYPE, *FORM_TYPES)),
        )
    body = await read_body(request, limits)
    content = parse_json(body) if kind == JSON_TYPE else await parse_form(request, body)
    wanted = check_fields(content, is_form=kind != JSON_TYPE)
    check_text(wanted, limits)
    return wanted


def parse_json(body: bytes) -> Mapping[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"no JSON: {error}; send {EXAMPLE}") from None
    if not isinstance(content, dict):
        raise RefusedError(400, f"no JSON object; send {EXAMPLE}")
    return content


async def parse_form(request: Request, body: bytes) -> Mapping[str, Any]:
    """Fields that are given once are strings, others lists."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        form = await Request(request.scope, receive).form(
            max_files=0, max_fields=1_024, max_part_size=len(body) + 1
        )
    except MultiPartException as error:
        raise RefusedError(400, f"no form: {error.message}") from None
    except (ValueError, LookupError, AssertionError, TypeError) as error:
        raise RefusedError(400, f"no form: {error}") from None
    found = {name: form.getlist(name) for name in form}
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def check_fields(content: Mapping[str, Any], is_form: bool) -> Wanted:
    for name in content:
        if name not in KNOWN and name not in IGNORED:
            hint = did_you_mean(name, KNOWN) or f"; there are {', '.join(KNOWN)}"
            raise RefusedError(400, f"there is no field {name!r}{hint}")
    if "q" not in content:
        form = "; JSON needs the header Content-Type: application/json" if is_form else ""
        raise RefusedError(400, f"no q; send {EXAMPLE}{form}")
    found: dict[str, Any] = {}
    for name, value in content.items():
        if name in IGNORED or (value is None and name != "q"):
            continue
        expected, convert = KINDS.get(name, KINDS[""])
        try:
            found[name] = convert(value)
        except (ValueError, TypeError, KeyError):
            shown = repr(value)[:60]
            raise RefusedError(400, f"{name} must be {expected}, got {shown}") from None
    return Wanted(**found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half of a surrogate pair, which JSON can express, raises ValueError
    return value


def _texts(value: Any) -> str | list[str]:
    return [_text(text) for text in value] if isinstance(value, list) else _text(value)


def _flag(value: Any) -> bool:
    return {True: True, False: False, "true": True, "false": False, "1": True, "0": False}[value]


def _number(value: Any) -> int:
    number = int(value) if isinstance(value, str) and len(value) < 9 else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError
    return min(number, MAX_ALTERNATIVES)


def _format(value: Any) -> str:
    if value not in ("text", "html"):
        raise ValueError
    return str(value)


KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "": ("text", _text),
    "q": ("text or a list of texts", _texts),
    "format": ("text or html", _format),
    "alternatives": ("a number from 0", _number),
    "split": ("true or false", _flag),
    "details": ("true or false", _flag),
}


def check_text(wanted: Wanted, limits: Limits) -> None:
    """Count characters before anything is done with them."""
    characters = sum(map(len, wanted.texts))
    if characters > limits.characters:
        raise RefusedError(
            413, f"{characters} characters, at most {limits.characters}; send several requests"
        )
    if len(wanted.texts) > limits.sentences:
        raise RefusedError(
            413, f"{len(wanted.texts)} texts, at most {limits.sentences}; send several requests"
        )
