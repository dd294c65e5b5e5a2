"""The OpenAPI document: what every path takes and answers."""

from typing import Any, get_args

from oaxe import __version__
from oaxe.search.hypothesis import Fate
from oaxe.serving.limits import Limits
from oaxe.serving.requests import FORM_TYPES, JSON_TYPE, MAX_ALTERNATIVES

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
ERRORS = {
    400: "Not what is described here: the message names the field",
    401: "An API key is needed",
    403: "An unknown API key, or a page of another site",
    405: "Another method",
    408: "The request took too long to arrive",
    413: "Too large",
    415: "Another content type",
    422: "A sentence is longer than the model reads; nothing is translated",
    429: "Too many requests of this client; try again after Retry-After seconds",
    500: "An error of the server, whose log has the traceback",
    503: "Too much to do, or stopping; try again after Retry-After seconds",
}


def describe_api(limits: Limits, *, needs_key: bool) -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Translation over HTTP",
            "version": __version__,
            "description": "POST /translate and GET /languages are compatible with LibreTranslate.",
        },
        "paths": {
            "/translate": {"post": _translate(limits, needs_key)},
            "/languages": _get("Source languages, each with its targets.", _list(_language())),
            "/models": _get("The models, and how they decode.", _list({"type": "object"})),
            "/health": _get("The process is alive; 503 otherwise.", {"type": "object"}, 503),
            "/ready": _get("Requests are answered now; 503 otherwise.", {"type": "object"}, 503),
            "/metrics": _get("Counters, in Prometheus' text format.", TEXT, kind="text/plain"),
            "/openapi.json": _get("This document.", {"type": "object"}),
            "/docs": _get("This document as a page.", TEXT, kind="text/html"),
            "/": _get("A page to type into.", TEXT, kind="text/html"),
        },
        "components": {
            "schemas": {
                "Error": _object({"error": {**TEXT, "description": "The reason."}}, "error")
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _translate(limits: Limits, needs_key: bool) -> dict[str, Any]:
    schema = _object(_fields(limits), "q")
    example = {"q": "A dog. A cat.", "source": "en", "target": "de", "alternatives": 1}
    operation: dict[str, Any] = {
        "summary": "Translate one text or a list of texts, sentence by sentence.",
        "requestBody": {
            "required": True,
            "description": f"At most {limits.bytes} bytes, {limits.characters} characters, "
            f"{limits.sentences} sentences.",
            "content": {
                JSON_TYPE: {"schema": schema, "example": example},
                **{kind: {"schema": schema} for kind in FORM_TYPES},
            },
        },
        "responses": {"200": _answer("The translations.", _object(_answers(), "translatedText"))}
        | _errors(*ERRORS),
    }
    return operation | ({"security": [{"key": []}, {}]} if needs_key else {})


def _fields(limits: Limits) -> dict[str, Any]:
    def described(description: str, **schema: Any) -> dict[str, Any]:
        return {**schema, "description": description}

    return {
        "q": described(
            "One text or several.",
            oneOf=[TEXT, {"type": "array", "items": TEXT, "maxItems": limits.sentences}],
        ),
        "source": described("Language of the text; auto is any that a model reads.", **TEXT),
        "target": described("Language of the translation.", **TEXT),
        "format": described(
            "html: tags stay, the text between them is translated.",
            type="string", enum=["text", "html"], default="text",
        ),
        "alternatives": described(
            "How many other translations to send; models have fewer, or none.",
            type="integer", minimum=0, default=0, examples=[MAX_ALTERNATIVES],
        ),
        "api_key": described("Where the server asks for one.", **TEXT),
        "model": described("Name of a model, instead of languages.", **TEXT),
        "split": described(
            "false: every text is one sentence.", type="boolean", default=True
        ),
        "details": described(
            "Send the hypotheses of every sentence, with scores, subwords and positions.",
            type="boolean", default=False,
        ),
    }  # fmt: skip


def _answers() -> dict[str, Any]:
    sentence = _sentence()
    several: dict[str, Any] = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
    return {
        "translatedText": {**several, "description": "One for one text, a list for a list."},
        "alternatives": {"type": "array", "description": "If asked for; a list for each text."},
        "details": {
            **_list({"oneOf": [sentence, _list(sentence)]}),
            "description": "If asked for: the sentences of each text, with their hypotheses, and "
            "of each hypothesis what every position of the decoder predicted.",
        },
        "detectedLanguage": {"description": "For the source auto; a list for a list."},
        "model": {**TEXT, "description": "Its name."},
        "milliseconds": {**NUMBER, "description": "In the server, with waiting."},
    }


def _sentence() -> dict[str, Any]:
    """Of ``details``."""
    position = {"subword": TEXT, "probability": NUMBER, "fate": {"enum": list(get_args(Fate))}}
    positions = _list(_object(position, *position)) | {
        "type": ["array", "null"],
        "description": "null where the decoder does not know them.",
    }
    tokens = _list({"type": "integer"})
    hypothesis = {"text": TEXT, "score": NUMBER, "length": {"type": "integer"}}
    hypothesis |= {"tokens": tokens, "positions": positions}
    sentence = {"source": TEXT, "translations": _list(_object(hypothesis, *hypothesis))}
    return _object(sentence, *sentence)


def _language() -> dict[str, Any]:
    return _object({"code": TEXT, "name": TEXT, "targets": _list(TEXT)}, "code", "name", "targets")


def _get(summary: str, schema: dict[str, Any], *errors: int, kind: str = JSON_TYPE) -> Any:
    answers = {"200": _answer(summary, schema, kind)} | _errors(403, 405, *errors)
    return {"get": {"summary": summary, "responses": answers}}


def _errors(*statuses: int) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    return {str(status): _answer(f"{ERRORS[status]}.", error) for status in statuses}


def _answer(description: str, schema: dict[str, Any], kind: str = JSON_TYPE) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
