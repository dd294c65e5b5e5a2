"""A stand-in of the Hugging Face hub: what huggingface_hub calls over HTTP for our translators.

Models are kept in memory, files as regular ones. Who may write has the token.
"""

import json
import re
import socket
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import reload
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

TOKEN = "hf_of_this_test"


def git_id(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Model:
    url: str
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        number = sha1(f"{len(self.commits)}".encode()).hexdigest()
        before = self.commits.get(self.branches.get(branch, ""), {})
        self.commits[number] = {**before, **files}
        self.branches[branch] = number
        return number

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(revision, revision)]


@dataclass
class Hub:
    models: dict[str, Model] = field(default_factory=dict)
    silent: bool = False  # closes connections without an answer
    requests: list[str] = field(default_factory=list)  # HEAD /owner/model/resolve/main/a-file


class RefusedError(Exception):
    def __init__(self, status: int, code: str = "", **body: str) -> None:
        self.status, self.body = status, body
        self.headers = {"X-Error-Code": code} if code else {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hub.silent:
            self.close_connection = True
            return
        try:
            status, headers, answer = self.answer(path, body)
        except RefusedError as error:
            status, headers, answer = error.status, error.headers, json.dumps(error.body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.command == "POST" and not known:
            raise RefusedError(401)
        if file := re.fullmatch("/(.+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(*map(unquote, file.groups()))
        if path == "/api/repos/create":
            found: object = self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            found = {"errors": [], "warnings": []}
        elif about := re.fullmatch("/api/models/([^/]+/[^/]+)(?:/([^/]+)/([^/]+))?", path):
            name, what, revision = about.groups()
            model = self.model(name)
            found = getattr(self, what or "revision")(model, unquote(revision or "main"), body)
        else:
            raise RefusedError(404, "RepoNotFound")
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()

    def model(self, name: str) -> Model:
        model = self.hub.models.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if model is None or (model.private and not known):
            raise RefusedError(404 if known else 401, "RepoNotFound")
        return model

    def at(self, model: Model, revision: str) -> str:
        number = model.branches.get(revision, revision)
        if number not in model.commits:
            raise RefusedError(404, "RevisionNotFound")
        return number

    def resolve(self, name: str, revision: str, file: str) -> tuple[int, dict[str, str], bytes]:
        model = self.model(name)
        number = self.at(model, revision)
        if file not in model.commits[number]:
            raise RefusedError(404, "EntryNotFound")
        content = model.commits[number][file]
        return 200, {"X-Repo-Commit": number, "ETag": f'"{git_id(content)}"'}, content

    def create(self, asked: dict[str, Any]) -> object:
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        url = f"{constants.ENDPOINT}/{name}"
        if name in self.hub.models:
            raise RefusedError(409, url=url)
        model = self.hub.models[name] = Model(url, asked.get("visibility") == "private")
        model.commit("main", {".gitattributes": b""})
        return {"url": url}

    def branch(self, model: Model, name: str, body: bytes) -> object:
        if name in model.branches:
            raise RefusedError(409)
        model.branches[name] = self.at(model, "main")
        return {}

    def preupload(self, model: Model, revision: str, body: bytes) -> object:
        there = model.commits[self.at(model, revision)]
        files = [file["path"] for file in json.loads(body)["files"]]
        ids = {path: git_id(there[path]) if path in there else None for path in files}
        both = {"uploadMode": "regular", "shouldIgnore": False}
        return {"files": [{"path": path, "oid": ids[path], **both} for path in files]}

    def commit(self, model: Model, branch: str, body: bytes) -> object:
        self.at(model, branch)
        first, *files = map(json.loads, body.splitlines())
        assert first["key"] == "header"
        assert {file["key"] for file in files} == {"file"}
        new = {file["value"]["path"]: b64decode(file["value"]["content"]) for file in files}
        number = model.commit(branch, new)
        return {"commitUrl": f"{model.url}/commit/{number}", "commitOid": number}

    def revision(self, model: Model, revision: str, body: bytes) -> object:
        return {"id": "a/model", "sha": self.at(model, revision), "private": model.private}

    def tree(self, model: Model, revision: str, body: bytes) -> object:
        files = model.commits[self.at(model, revision)].items()
        return [
            {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
            for path, content in files
        ]


@contextmanager
def local_hub(cache: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[Hub]:
    """The real client asks the hub that is yielded; another address would be an error."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Handler,), {"hub": hub}))
    thread = Thread(target=server.serve_forever, args=(0.01,))
    connect = socket.create_connection

    def only_here(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        assert address == server.server_address
        return connect(address, *arguments, **options)

    environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    environment |= {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    thread.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", only_here)
            for name, value in environment.items():
                patch.setenv(name, value)
            reload(constants)  # which reads the environment
            yield hub
    finally:
        reload(constants)
        server.shutdown()
        server.server_close()
        thread.join()
