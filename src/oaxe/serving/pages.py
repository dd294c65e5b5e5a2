"""The pages: one to type into, one that describes the interface. They fetch from here only."""

import secrets
from typing import Any

from oaxe.serving.models import Models
from oaxe.support.html import render
from oaxe.text.languages import language_name


class Pages:
    """Rendered once.

    Attributes:
        headers: allow the page its own script, which has a nonce, and requests to this server.
    """

    def __init__(self, models: Models, api: dict[str, Any], *, needs_key: bool) -> None:
        nonce = secrets.token_urlsafe(16)
        self.headers = {
            "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
            f"style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'self'",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        choices = [
            {"name": model.name, "title": title(model.source, model.target), "lang": model.target}
            for model in models.by_name.values()
        ]
        heading = choices[0]["title"] if len(choices) == 1 else "Translation"
        self.main = render(
            "serve.html", title=heading, choices=choices, needs_key=needs_key, nonce=nonce
        )
        self.docs = render("api.html", title=api["info"]["title"], api=api)


def title(source: str, target: str) -> str:
    """What a model does.

    Example:
        >>> title("en", "de"), title("", "")
        ('English to German', 'Translation')
    """
    if not (source and target):
        return "Translation"
    return f"{language_name(source)} to {language_name(target)}"
