"""The ASGI application: what each path answers."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from oaxe.decoding.translator import Translation
from oaxe.serving.batcher import Batcher, BusyError
from oaxe.serving.documents import Documents
from oaxe.serving.errors import RefusedError, busy
from oaxe.serving.guard import Access, Guard
from oaxe.serving.limits import Limits
from oaxe.serving.metrics import KIND, Metrics
from oaxe.serving.models import Model, Models
from oaxe.serving.openapi import describe_api
from oaxe.serving.pages import Pages
from oaxe.serving.rates import Rates
from oaxe.serving.requests import Wanted, read_request
from oaxe.serving.router import Router

Hypotheses = list[Translation]


class Job(NamedTuple):
    """What sentences of a batch have in common."""

    model: Model
    most: int | None  # hypotheses of a sentence, whose texts take time to join; None: all


class Service:
    """Translation over HTTP: the endpoints, and the threads that translate for them."""

    def __init__(
        self,
        models: Models,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        access: Access = Access(),  # noqa: B008
        batch_tokens: int = 16_384,
        bf16: bool = False,
        access_log: bool = True,
    ) -> None:
        self.models, self.limits, self.access = models, limits, access
        self.metrics, self.rates = Metrics(), Rates(limits.requests)

        def translate(job: Job, sentences: Sequence[str]) -> list[Hypotheses]:
            return job.model.translate(
                sentences, most=job.most, batch_tokens=batch_tokens, bf16=bf16
            )

        threads = 2 if models.are_exported else 1
        self.batcher = Batcher[Job, Hypotheses](
            translate,
            lambda job, sentences: job.model.refuse_long(sentences),
            max_batch=max(1, limits.batch // threads),
            max_waiting=limits.waiting,
            threads=threads,
            watch=self.metrics.batch,
            call=self._in_loop,
        )
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that waits for answers
        waiting = "Sentences that wait for a batch."
        self.metrics.gauge("oaxe_waiting_sentences", waiting, lambda: self.batcher.waiting)
        self._api = describe_api(limits, needs_key=bool(access.api_keys))
        self._pages = Pages(models, self._api, needs_key=bool(access.api_keys))
        self.app = self._build(access_log)

    def _build(self, access_log: bool) -> Guard:
        get = {
            "/": self.page,
            "/languages": self.languages,
            "/models": self.list_models,
            "/health": self.health,
            "/ready": self.ready,
            "/metrics": self.show_metrics,
            "/openapi.json": self.openapi,
            "/docs": self.docs,
        }
        endpoints = {path: {"GET": endpoint} for path, endpoint in get.items()}
        endpoints["/translate"] = {"POST": self.translate}
        app: ASGIApp = Router(endpoints)
        if self.access.origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(self.access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
                expose_headers=["Retry-After", "X-Request-Id"],
            )
        return Guard(app, self.access, self.metrics, endpoints, access_log=access_log)

    async def translate(self, request: Request) -> Response:
        wanted = await read_request(request, self.limits)
        self._check_rate(request, self._check_key(request, wanted))
        model = self.models.choose(wanted.model, wanted.source, wanted.target)
        start = time.perf_counter()
        documents = Documents(wanted)
        count = len(documents.sentences)
        if count > self.limits.sentences:
            message = f"{count} sentences, at most {self.limits.sentences}; send several requests"
            raise RefusedError(413, message)
        found = await self._translations(request, Job(model, wanted.most), documents.sentences)
        answer = documents.answer(found, model.target, model.translator.subwords.piece)
        self.metrics.translated(model.name, count, sum(map(len, wanted.texts)))
        if wanted.source == "auto":  # nothing is detected: the model says what it reads
            detected = {"language": model.source, "confidence": 0}
            answer["detectedLanguage"] = documents.as_asked([detected] * len(wanted.texts))
        answer["model"] = model.name
        answer["milliseconds"] = round(1e3 * (time.perf_counter() - start), 1)
        return JSONResponse(answer)

    async def _translations(
        self, request: Request, job: Job, sentences: Sequence[str]
    ) -> list[Hypotheses]:
        """Wait for a batch, but no longer than allowed, nor for a client that is gone."""
        if not sentences:
            return []
        wait = self.batcher.seconds_to_wait
        try:
            # Rather at once than after all this time. Half: batches are answered as a whole, and
            # if all were at the limit, any delay would make all of them too late. A server that
            # stops has only what was sent before, and takes it.
            if wait > self.limits.seconds / 2 and not self.app.is_stopping:
                raise BusyError
            submitted = self.batcher.submit(job, sentences)
        except BusyError:
            message = "too much is waiting already; try again later"
            raise busy(message, min(wait, self.limits.seconds)) from None
        gone: asyncio.Future[None] = request.state.gone
        self._loop = asyncio.get_running_loop()
        arrival: asyncio.Future[None] = self._loop.create_future()

        def end(_: object = None) -> None:
            if not arrival.done():
                arrival.set_result(None)

        submitted.add_done_callback(end)
        gone.add_done_callback(end)
        late = self._loop.call_later(self.limits.seconds, end)
        try:
            await arrival
            if submitted.done():
                return submitted.result()
            if gone.done():
                raise RefusedError(400, "the client hung up")
            message = f"no answer within {self.limits.seconds:g} seconds; try again later"
            raise busy(message)
        finally:
            gone.remove_done_callback(end)
            late.cancel()
            submitted.cancel()

    def _in_loop(self, finish: Callable[[], None]) -> None:
        """Called by the threads that translate."""
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(finish)

    def _check_key(self, request: Request, wanted: Wanted) -> str | None:
        """The API key, where one is needed."""
        if not self.access.api_keys:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = wanted.api_key or (token if scheme.lower() == "bearer" else None)
        if given is None:
            message = "an API key is needed: the field api_key, or Authorization: Bearer KEY"
            raise RefusedError(401, message, WWW_Authenticate="Bearer")
        if not self.access.has_key(given):
            raise RefusedError(403, "this API key is not known")
        return given

    def _check_rate(self, request: Request, key: str | None) -> None:
        client = f"key {key}" if key else request.client.host if request.client else ""
        if wait := self.rates.seconds_to_wait(client):
            message = f"at most {self.limits.requests} requests a minute; try again later"
            raise RefusedError(429, message, Retry_After=str(math.ceil(wait)))

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._pages.main, headers=self._pages.headers)

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(self._pages.docs, headers=self._pages.headers)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self._api)

    async def languages(self, request: Request) -> Response:
        return JSONResponse(self.models.languages)

    async def list_models(self, request: Request) -> Response:
        return JSONResponse([model.about for model in self.models.by_name.values()])

    async def health(self, request: Request) -> Response:
        if not self.batcher.is_alive:
            raise busy("a thread that translates has ended; start the server again")
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if self.app.is_stopping:
            raise busy("the server is stopping")
        if self.batcher.waiting >= self.limits.waiting:
            raise busy("too much is waiting already")
        return JSONResponse({"status": "ready", "models": list(self.models.by_name)})

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=KIND)
