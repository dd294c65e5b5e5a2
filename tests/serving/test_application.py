"""What the server answers: translations as LibreTranslate sends them, and clear refusals."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from oaxe.decoding.box import model_in_the_box
from oaxe.decoding.translator import Translation
from oaxe.serving.guard import Access, read_keys
from oaxe.serving.limits import Limits
from oaxe.serving.models import Models, most_subwords, named
from oaxe.serving.requests import FORM_TYPES
from oaxe.serving.server import Endpoint, listen
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.serving.samples import ask, backwards, model_of, serving, translate

FORM = {"Content-Type": FORM_TYPES[0]}
MULTIPART = {"Content-Type": f"{FORM_TYPES[1]}; boundary=x"}
LIMITS = Limits(bytes=3_000, characters=500, sentences=20)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serving(limits=LIMITS) as endpoint:
        yield endpoint


def test_text_as_libretranslate_answers_it(endpoint: Endpoint) -> None:
    asked = {"q": "abc", "source": "en", "target": "de", "format": "text", "api_key": ""}
    status, answer = translate(endpoint, asked)
    assert (status, answer["translatedText"]) == (200, "cba")
    assert answer["model"] == "en-de"
    assert answer["milliseconds"] >= 0
    assert set(answer) == {"translatedText", "model", "milliseconds"}
    status, answer = translate(endpoint, {"q": ["abc", "", "äö 字"], "alternatives": 3})
    assert answer["translatedText"] == ["cba", "", "字 öä"]
    assert answer["alternatives"] == [["CBA"], [], ["字 ÖÄ"]]
    assert translate(endpoint, {"q": "abc", "alternatives": 1})[1]["alternatives"] == ["CBA"]
    assert translate(endpoint, {"q": []})[1]["translatedText"] == []
    assert translate(endpoint, {"q": "a", "source": None})[1]["translatedText"] == "a"
    assert translate(endpoint, {"q": "a", "source": "auto"})[1]["detectedLanguage"] == {
        "language": "en",
        "confidence": 0,
    }
    status, answer = translate(endpoint, {"q": ["a", "b"], "source": "auto"})
    assert answer["detectedLanguage"] == [{"language": "en", "confidence": 0}] * 2


def test_forms(endpoint: Endpoint) -> None:
    for body, headers in (
        (urlencode({"q": "ab ü&c", "source": "en", "target": "de", "alternatives": "1"}), FORM),
        (
            '--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nab ü&c\r\n--x\r\n'
            'Content-Disposition: form-data; name="alternatives"\r\n\r\n1\r\n--x--\r\n',
            MULTIPART,
        ),
    ):
        status, _, text = ask(endpoint, "POST", "/translate", body.encode(), headers)
        assert status == 200
        assert json.loads(text)["translatedText"] == "c&ü ba"
        assert json.loads(text)["alternatives"] == ["C&Ü BA"]
    _, _, text = ask(endpoint, "POST", "/translate", "q=ab&q=cd&split=false", FORM)
    assert json.loads(text)["translatedText"] == ["ba", "dc"]


def test_sentences_lines_and_tags(endpoint: Endpoint) -> None:
    def text_of(q: str, **fields: Any) -> Any:
        return translate(endpoint, {"q": q, **fields})[1]["translatedText"]

    assert text_of(" A dog. A cat!\n\nA mouse\n") == " .god A !tac A\n\nesuom A\n"
    assert text_of("A dog. A cat!", split=False) == "!tac A .god A"
    assert text_of("犬。猫。") == "。犬 。猫"  # German has spaces
    page = '<p class="a>b">a &lt; bc. Yes</p><!-- no --><script>no()</script><br>\n'
    expected = '<p class="a>b">.cb &lt; a seY</p><!-- no --><script>no()</script><br>\n'
    assert text_of(page, format="html") == expected
    _, answer = translate(endpoint, {"q": ["A bc. D", ""], "details": True})
    assert [[s["source"] for s in text] for text in answer["details"]] == [["A bc.", "D"], []]
    best, other = answer["details"][0][0]["translations"]
    positions = best.pop("positions")
    assert best == {"text": ".cb A", "score": 0.0, "length": 5, "tokens": [7]}
    assert [tuple(position.values()) for position in positions] == [
        ("\u2581.cb", 0.25, "kept"),
        ("\u2581.cb", 1.0, "repeat"),
        ("\u2581A", 0.25, "kept"),
        ("\u2581A", 1.0, "repeat"),
        ("<blank>", 1.0, "blank"),
    ]
    assert other["positions"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON"),
        (b"no", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 2_999, "no JSON"),
        (b"9" * 2_999, "no JSON"),
        ({}, "no q"),
        ({"q": 1}, "q must be text or a list of texts, got 1"),
        ({"q": None}, "q must be text or a list of texts"),
        ({"q": ["a", 1]}, "q must be text or a list of texts"),
        ({"q": {"a": 1}}, "q must be text or a list of texts"),
        (b'{"q": "\\ud800"}', "q must be text"),
        ({"q": "a", "source": 3}, "source must be text, got 3"),
        ({"q": "a", "format": "pdf"}, "format must be text or html, got 'pdf'"),
        ({"q": "a", "format": []}, "format must be text or html"),
        ({"q": "a", "alternatives": -1}, "alternatives must be a number from 0, got -1"),
        ({"q": "a", "alternatives": True}, "alternatives must be"),
        ({"q": "a", "alternatives": 1.5}, "alternatives must be"),
        ({"q": "a", "split": "maybe"}, "split must be true or false"),
        ({"q": "a", "details": {}}, "details must be true or false"),
        ({"q": "a", "alternative": 1}, "no field 'alternative'; did you mean alternatives?"),
        (b'{"q": "a", "\\ud800": 3}', "no field"),
        ({"q": "a", "source": "fr"}, "no model translates fr to any language; there are en to de"),
        ({"q": "a", "target": "en"}, "no model translates any language to en"),
        ({"q": "a", "model": "en-d"}, "there is no model 'en-d'; did you mean en-de?"),
        ({"q": "a", "model": "x"}, "there is no model 'x'; there are en-de"),
    ],
)
def test_rejects_what_is_not_clear(endpoint: Endpoint, content: Any, message: str) -> None:
    status, answer = translate(endpoint, content)
    assert status == 400
    assert message in answer["error"]


def test_rejects_other_content_types(endpoint: Endpoint) -> None:
    for kind in ("text/plain", "text/html; charset=utf-8", "application/octet-stream"):
        status, answer = translate(endpoint, {"q": "a"}, Content_Type=kind)
        assert status == 415
        assert "send application/json or a form" in answer["error"]
    assert ask(endpoint, "POST", "/translate", b'{"q": "a"}')[0] == 415
    status, _, text = ask(endpoint, "POST", "/translate", '{"q": "a"}', FORM)
    assert status == 400
    assert json.loads(text)["error"].startswith("there is no field")
    for body in (
        "--x\r\nno",
        "",
        "--x--",
        "--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
    ):
        assert ask(endpoint, "POST", "/translate", body, MULTIPART)[0] == 400
    without = {"Content-Type": "multipart/form-data"}
    assert ask(endpoint, "POST", "/translate", "a", without)[0] == 400
    file = '--x\r\nContent-Disposition: form-data; name="q"; filename="f"\r\n\r\nab\r\n--x--\r\n'
    assert ask(endpoint, "POST", "/translate", file, MULTIPART)[0] == 400


def test_rejects_too_much(endpoint: Endpoint) -> None:
    for content, message in (
        (b" " * 3_001, "at most 3000 bytes"),
        ({"q": "a" * 501}, "501 characters, at most 500"),
        ({"q": ["a" * 100] * 6}, "600 characters"),
        ({"q": ["a"] * 21}, "21 texts, at most 20"),
        ({"q": "B! " * 21}, "21 sentences, at most 20"),
    ):
        status, answer = translate(endpoint, content)
        assert status == 413
        assert message in answer["error"]
    status, answer = translate(endpoint, {"q": "fine. Too long " + "a " * 9})
    assert status == 422
    assert "11 subwords, the model reads 8 subwords; split it: 'Too long a a" in answer["error"]
    status, answer = translate(endpoint, {"q": "\ufdfa" * 129})  # 2,322 letters, once normalised
    assert status == 422
    assert "129 characters" in answer["error"]
    assert translate(endpoint, {"q": "fine"})[0] == 200


def test_no_sentence_has_more_subwords_than_is_said() -> None:
    """Each character, alone and among others, by the subwords of a real model."""
    subwords = Subwords.load(model_in_the_box() / "subwords.model")
    every = [chr(i) for i in range(1, 0x11000, 3) if not 0xD800 <= i < 0xE000]
    every += ["\ufdfa", "\ufdfa" * 9, "\u00bd", "\u3316", "x" * 99, "\u00e4\u1e9e" * 50]
    texts = [*every, *("".join(every[i : i + 50]) for i in range(0, len(every), 50))]
    for text, ids in zip(texts, subwords.encode(texts), strict=True):
        assert len(ids) <= most_subwords(text), text


def test_only_the_hypotheses_that_are_asked_for_are_joined() -> None:
    asked = list[int | None]()

    def translate_noted(sentences: Sequence[str], **how: Any) -> list[list[Translation]]:
        asked.append(how["most"])
        return [found[: how["most"]] for found in backwards(sentences)]

    with serving(model_of(translate=translate_noted)) as endpoint:
        assert translate(endpoint, {"q": "ab"})[1]["translatedText"] == "ba"
        assert translate(endpoint, {"q": "ab", "alternatives": 1})[1]["alternatives"] == ["BA"]
        (details,) = translate(endpoint, {"q": "ab", "details": True})[1]["details"]
        assert len(details["translations"]) == 2
    assert asked == [1, None, None]


def test_chunked_bodies_are_read_and_bounded(endpoint: Endpoint) -> None:
    def chunked(pieces: list[bytes]) -> int:
        headers = {"Content-Type": "application/json"}
        return ask(endpoint, "POST", "/translate", iter(pieces), headers)[0]  # type: ignore[arg-type]

    assert chunked([b'{"q": ', b'"a"}']) == 200
    assert chunked([b" " * 1_000] * 4) == 413


def test_errors_are_json_with_an_id(endpoint: Endpoint) -> None:
    for method, path, status in (
        ("GET", "/no", 404),
        ("POST", "/no", 404),
        ("GET", "/translate", 405),
        ("POST", "/languages", 405),
        ("DELETE", "/", 405),
        ("PROPFIND", "/health", 405),
        ("OPTIONS", "/translate", 405),
    ):
        found, headers, text = ask(endpoint, method, path)
        assert found == status
        assert json.loads(text)["error"]
        assert re.fullmatch("[0-9a-f]{16}", headers["X-Request-Id"])
        if status == 405:
            assert headers["Allow"]
    status, headers, _ = ask(endpoint, "GET", "/health", headers={"X-Request-Id": "my-1.a"})
    assert headers["X-Request-Id"] == "my-1.a"
    _, headers, _ = ask(endpoint, "GET", "/health", headers={"X-Request-Id": "no <b>"})
    assert headers["X-Request-Id"] != "no <b>"


def test_head_has_the_headers_of_get(endpoint: Endpoint) -> None:
    for path in ("/", "/health", "/languages", "/docs", "/metrics"):
        status, headers, text = ask(endpoint, "HEAD", path)
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 5
    assert ask(endpoint, "HEAD", "/translate")[0] == 405


def test_what_can_be_asked_about_the_server(endpoint: Endpoint) -> None:
    assert json.loads(ask(endpoint, "GET", "/health")[2]) == {"status": "ok"}
    assert json.loads(ask(endpoint, "GET", "/ready")[2])["models"] == ["en-de"]
    (model,) = json.loads(ask(endpoint, "GET", "/models")[2])
    assert (model["system"], model["device"]) == ("ctc", "cpu")
    translate(endpoint, {"q": "abc"})
    ask(endpoint, "GET", "/no/such/path")
    _, headers, text = ask(endpoint, "GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in (
        'oaxe_requests_total{path="/translate",status="200"} ',
        'oaxe_requests_total{path="other",status="404"} ',
        'oaxe_sentences_total{model="en-de"} ',
        'oaxe_characters_total{model="en-de"} ',
        "oaxe_batch_sentences_count ",
        "oaxe_waiting_sentences 0.0",
        "oaxe_connections 1.0",
    ):
        assert line in text


def test_models_are_chosen_by_name_or_languages() -> None:
    models = [model_of("en-de"), model_of("de-en"), model_of("en-ja")]
    with serving(*models) as endpoint:

        def chosen(**fields: str) -> Any:
            return translate(endpoint, {"q": "Ab. Cd.", **fields})[1]

        assert chosen(source="en", target="ja")["translatedText"] == ".bA.dC"
        assert chosen(source="en-GB", target="de")["model"] == "en-de"
        assert chosen(source="auto", target="en")["model"] == "de-en"
        assert chosen(model="de-en")["model"] == "de-en"
        assert chosen(source="en")["error"].startswith("which model? give source and target, or")
        assert "no model translates de to ja" in chosen(source="de", target="ja")["error"]
        assert "no model" in chosen(model="de-en", source="en")["error"]
        languages = json.loads(ask(endpoint, "GET", "/languages")[2])
        assert languages == [
            {"code": "en", "name": "English", "targets": ["de", "ja"]},
            {"code": "de", "name": "German", "targets": ["en"]},
            {"code": "ja", "name": "Japanese", "targets": []},
        ]


def test_names_of_models() -> None:
    translator = model_of().translator
    translator.decoding_with = lambda **options: Limits()  # type: ignore[method-assign]

    def name(given: str | None, *languages: str) -> tuple[str, str, str]:
        translator.languages = (languages[0], languages[1])
        model = named(given, "runs/mine/", translator)
        return model.name, model.source, model.target

    assert name(None, "en", "de") == ("en-de", "en", "de")
    assert name("best", "en", "de") == ("best", "en", "de")
    assert name("fr-en", "en", "de") == ("fr-en", "en", "de")  # the model knows better
    assert name("fr-en", "", "") == ("fr-en", "fr", "en")
    assert name("my-model", "", "") == ("my-model", "", "")
    assert name(None, "", "") == ("mine", "", "")
    with pytest.raises(UserError, match="two models have the same name: en-de, en-de"):
        Models([model_of(), model_of()])


def test_api_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsecret\n\n bär \n")
    access = Access(api_keys=read_keys(file))
    assert "secret" not in repr(access)
    with serving(access=access) as endpoint:
        assert translate(endpoint, {"q": "a"})[0] == 401
        assert translate(endpoint, {"q": "a", "api_key": "wrong"})[0] == 403
        assert translate(endpoint, {"q": "a", "api_key": "bär"})[0] == 200
        assert translate(endpoint, {"q": "a"}, Authorization="Bearer secret")[0] == 200
        assert translate(endpoint, {"q": "a"}, Authorization="Basic secret")[0] == 401
        assert ask(endpoint, "GET", "/languages")[0] == 200
        assert 'type="password"' in ask(endpoint, "GET", "/")[2]
    file.write_text("\n#\n")
    with pytest.raises(UserError, match="there is no API key in"):
        read_keys(file)
    with pytest.raises(UserError, match="cannot read the API keys"):
        read_keys(tmp_path / "none")


def test_pages_of_other_sites_cannot_ask() -> None:
    with serving() as endpoint:
        asked = {"q": "a"}
        own = f"http://127.0.0.1:{endpoint.port}"
        assert translate(endpoint, asked, Origin=own)[0] == 200
        for origin in ("http://evil.example", "null", f"http://127.0.0.1:{endpoint.port + 1}"):
            assert translate(endpoint, asked, Origin=origin)[0] == 403
            status, _, _ = ask(endpoint, "POST", "/translate", "q=a", FORM | {"Origin": origin})
            assert status == 403
        _, headers, _ = ask(endpoint, "GET", "/languages", headers={"Origin": "http://a.example"})
        assert "Access-Control-Allow-Origin" not in headers
    with serving(access=Access(origins=["https://ours.example"])) as endpoint:
        assert translate(endpoint, asked, Origin="https://evil.example")[0] == 403
        preflight = {"Origin": "https://ours.example", "Access-Control-Request-Method": "POST",
                     "Access-Control-Request-Headers": "content-type"}  # fmt: skip
        status, headers, _ = ask(endpoint, "OPTIONS", "/translate", headers=preflight)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://ours.example")
        body, kind = json.dumps(asked), {"Content-Type": "application/json"}
        status, headers, _ = ask(
            endpoint, "POST", "/translate", body, kind | {"Origin": "https://ours.example"}
        )
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://ours.example")


def test_foreign_hosts_are_refused() -> None:
    access = Access(hosts=["Ours.example"])
    for host in ("localhost", "localhost:80", "10.0.0.1:8000", "[::1]:80", "ours.EXAMPLE:1"):
        assert access.is_host(host)
    for host in ("", "evil.example", "localhost.evil.example", "ours.example.com", "[::g]"):
        assert not access.is_host(host)
    assert Access(hosts=["*"]).is_host("evil.example")
    with serving() as endpoint:
        status, _, text = ask(endpoint, "GET", "/", headers={"Host": "evil.example"})
        assert status == 403
        assert "--allow-host adds a name" in json.loads(text)["error"]


def test_a_bug_is_told_to_the_log_and_not_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with serving() as endpoint:
        status, answer = translate(endpoint, {"q": "bad"})
        assert status == 500
        assert answer == {"error": "an error of the server; its log has a traceback"}
        assert translate(endpoint, {"q": "good\n"})[0] == 200
        ask(endpoint, "GET", "/a%0Ab")
    assert "ValueError: a bad sentence" in caplog.text
    lines = [line for line in caplog.messages if "127.0.0.1" in line]
    assert len(lines) == 3
    assert re.fullmatch(r'127\.0\.0\.1 "POST /translate" 200 \d+\.\d ms [0-9a-f]{16}', lines[1])
    assert r'"GET /a\nb" 404' in lines[2]
    assert "good" not in caplog.text
    caplog.clear()
    with serving(access_log=False) as endpoint:
        assert translate(endpoint, {"q": "good"})[0] == 200
    assert "127.0.0.1" not in caplog.text


def test_the_interface_is_described(endpoint: Endpoint) -> None:
    document = json.loads(ask(endpoint, "GET", "/openapi.json")[2])
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            status, headers, _ = ask(
                endpoint, method.upper(), path, b"{}" if method == "post" else None
            )
            assert str(status) in operation["responses"], (method, path, status)
            if status == 200:
                kinds = operation["responses"]["200"]["content"]
                assert headers["Content-Type"].split(";")[0] in kinds
    post = document["paths"]["/translate"]["post"]
    content = post["requestBody"]["content"]["application/json"]
    status, answer = translate(endpoint, content["example"])
    assert status == 200
    assert set(answer) <= set(
        post["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    )
    page = ask(endpoint, "GET", "/docs")[2]
    for field in content["schema"]["properties"]:
        assert f"<code>{field}</code>" in page
    for path in document["paths"]:
        assert f"{path}</code></h2>" in page


def test_pages_ask_no_other_host(endpoint: Endpoint) -> None:
    for path in ("/", "/docs"):
        _, headers, page = ask(endpoint, "GET", path)
        assert not re.search(r"""(src|href|url\()=?["']?(https?:)?//""", page)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "<h1>English to German</h1>" in ask(endpoint, "GET", "/")[2]


def test_rejects_a_used_port(endpoint: Endpoint) -> None:
    with pytest.raises(UserError, match="choose others with --host and --port"):
        listen("127.0.0.1", endpoint.port)


def test_a_client_of_libretranslate(endpoint: Endpoint) -> None:
    api = pytest.importorskip("libretranslatepy").LibreTranslateAPI(endpoint.url)
    assert api.translate("A dog. A cat.\nYes", "en", "de") == ".god A .tac A\nseY"
    assert api.languages()[0]["code"] == "en"
