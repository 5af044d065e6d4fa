"""Every path of the server: answers, errors and headers."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.serving import schemas
from diffusion_mf.serving.hosts import hosts_of_loopback
from diffusion_mf.serving.observation import JsonFormatter
from diffusion_mf.tagger import Tagger

SENTENCES = [["Ada", "Byron", "sings", "in", "Oslo"], ["Eve"], []]
TEXT = "Ada Byron sings in Oslo. Eve 😀 left.\n\nThe royal choir!"
TOKEN = "a-token-of-sixteen-characters-or-more"


@pytest.fixture(scope="module")
def taggers() -> dict[str, Tagger]:
    return {"ner": small_tagger("diffusion-mf", Task.NER), "pos": small_tagger("mean-field", Task.POS)}


@pytest.fixture(scope="module")
def client(taggers: dict[str, Tagger]) -> Iterator[TestClient]:
    with client_of(taggers, body_bytes=20_000, request_units=500, sentence_units=100, detail_units=50) as client:
        yield client


def answer(client: TestClient, **body: Any) -> Any:
    response = client.post("/tag", json=body)
    assert response.status_code == 200, response.text
    schemas.TagAnswer.model_validate_json(response.content, strict=True)
    return response.json()


def test_sentences_are_labelled_as_by_the_tagger(client: TestClient, taggers: dict[str, Tagger]) -> None:
    found = answer(client, model="ner", sentences=SENTENCES, scores=True)
    for sentence, expected in zip(found["sentences"], taggers["ner"].tag(SENTENCES), strict=True):
        assert tuple(sentence["units"]) == expected.units
        assert sentence["labels"] == expected.labels
        assert sentence["scores"] == pytest.approx(expected.scores, abs=1e-5)
        assert [(span["start"], span["end"], span["label"]) for span in sentence["spans"]] == [
            span[:3] for span in expected.spans
        ]
        assert not sentence.keys() & {"offsets", "trajectory", "alternatives"}


def test_texts_have_offsets_of_tokens_and_spans(client: TestClient, taggers: dict[str, Tagger]) -> None:
    found = answer(client, model="ner", texts=[TEXT, "", "Eve"])
    assert [len(text["sentences"]) for text in found["texts"]] == [3, 0, 1]
    for sentence, expected in zip(found["texts"][0]["sentences"], taggers["ner"].tag_text(TEXT), strict=True):
        assert sentence["labels"] == expected.labels
        assert [tuple(pair) for pair in sentence["offsets"]] == list(expected.offsets or ())
        assert [TEXT[start:end] for start, end in sentence["offsets"]] == sentence["units"]
        for span in sentence["spans"]:
            start, end = span["characters"]
            units = sentence["units"][span["start"] : span["end"]]
            assert TEXT[start:end].split() == units or TEXT[start:end] == "".join(units)


def test_alternatives_trajectories_and_schemes(client: TestClient, taggers: dict[str, Tagger]) -> None:
    found = answer(client, model="ner", sentences=SENTENCES[:2], k_best=3, trajectory=True, scheme="bio2", calls=2)
    expected = taggers["ner"].tag(SENTENCES[:2], k_best=3, trajectory=True, scheme="bio2", calls=2)
    assert found["labels"] == list(taggers["ner"].labels_in("bio2"))
    for sentence, result in zip(found["sentences"], expected, strict=True):
        assert [each["labels"] for each in sentence["alternatives"]] == [each.labels for each in result.alternatives]
        assert [step["t"] for step in sentence["trajectory"]] == [step.t for step in result.trajectory]
        assert sentence["trajectory"][1]["beliefs"] == [
            pytest.approx(row, abs=1e-5) for row in result.trajectory[1].beliefs.tolist()
        ]


def test_marginals(client: TestClient, taggers: dict[str, Tagger]) -> None:
    found = answer(client, model="ner", sentences=SENTENCES[:2], marginals=True, scores=True)
    assert found["labels"] == list(taggers["ner"].labels)
    for sentence, result in zip(found["sentences"], taggers["ner"].tag(SENTENCES[:2], marginals=True), strict=True):
        assert sentence["marginals"] == [pytest.approx(row, abs=1e-5) for row in result.marginals.tolist()]
        chosen = [found["labels"].index(label) for label in sentence["labels"]]
        assert sentence["scores"] == [row[column] for row, column in zip(sentence["marginals"], chosen, strict=True)]


def test_what_is_served(client: TestClient, taggers: dict[str, Tagger]) -> None:
    models = client.get("/models").json()["models"]
    assert [model["name"] for model in models] == ["ner", "pos"]
    assert models[0]["labels"] == list(taggers["ner"].labels)
    assert client.get("/health").json()["status"] == "UP"
    assert client.get("/ready").json() == {"ready": True}
    answer(client, model="pos", sentences=SENTENCES)
    metrics = client.get("/metrics").text
    assert 'dmf_requests_total{path="/tag",status="200"}' in metrics
    assert 'dmf_sentences_total{model="pos"}' in metrics
    assert 'dmf_waiting_units{model="ner"} 0.0' in metrics


ONE = [["Ada", "sings"]]
BAD = {
    "the body is not json": (b"{", 400, "The body is not JSON; send a JSON object."),
    "half a surrogate": (b'{"texts": ["\\ud800"]}', 400, "The body is not JSON; send a JSON object."),
    "neither": ({"model": "ner"}, 422, 'give either "texts" or "sentences".'),
    "both": ({"model": "ner", "texts": ["a"], "sentences": ONE}, 422, 'give either "texts" or "sentences".'),
    "unknown field": ({"model": "ner", "sentences": ONE, "clamp": []}, 422, "clamp: Extra inputs are not permitted."),
    "wrong type": ({"model": "ner", "sentences": [["a", 1]]}, 422, "sentences.0.1: Input should be a valid string."),
    "empty unit": ({"model": "ner", "sentences": [["a", ""]]}, 422, "sentences.0.1: String should have at least 1 character."),
    "too many best": ({"model": "ner", "sentences": ONE, "k_best": 99}, 422, "k_best: Input should be less than or equal to 10."),
    "no such model": ({"model": "nerd", "sentences": ONE}, 404, "no model is called 'nerd'; use ner."),
    "no model": ({"sentences": ONE}, 422, "several models are served; name one of them: ner, pos."),
    "scheme of another task": (
        {"model": "pos", "sentences": ONE, "scheme": "bio2"},
        422,
        "labels of the task pos cannot be written in the scheme bio2; leave out the scheme.",
    ),
    "calls of a direct system": (
        {"model": "pos", "sentences": ONE, "calls": 3},
        422,
        "the system mean-field makes one call, not 3; leave out the number of calls.",
    ),
    "clamp out of place": (
        {"model": "ner", "sentences": ONE, "clamps": [{"7": "O"}]},
        422,
        "the clamp of sentence 1 names the position 7, but the sentence has 2 unit(s); count positions from 0.",
    ),
    "clamps of texts": (
        {"model": "ner", "texts": ["a"], "clamps": [None]},
        422,
        'clamps are for "sentences"; take the units of an answer without clamps.',
    ),
    "too few clamps": (
        {"model": "ner", "sentences": [["a"], ["b"]], "clamps": [None]},
        422,
        "there are 1 clamps for 2 item(s); give null where there is none.",
    ),
    "too many bytes": ({"model": "ner", "texts": ["a" * 20_000]}, 413, "The body has more than 20,000 bytes; send it in parts."),
    "too long a text": (
        {"model": "ner", "texts": [" " * 5_000, "a"]},
        413,
        "the texts have 5,001 characters, more than 5,000; send them in several requests.",
    ),
    "too many units": (
        {"model": "ner", "sentences": [["a"] * 60] * 9},
        413,
        "there are 540 units, more than 500 in a request; send them in several requests.",
    ),
    "too long a sentence": (
        {"model": "ner", "sentences": [["a"], ["a"] * 101]},
        413,
        "sentence 2 has 101 units, more than 100; divide it.",
    ),
    "too much detail": (
        {"model": "ner", "sentences": [["a"] * 60], "trajectory": True},
        413,
        "there are 60 units, more than 50 in a request for trajectories, marginals or alternatives; send them in several requests.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_one_sentence(client: TestClient, name: str) -> None:
    body, status, sentence = BAD[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post("/tag", content=data, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()) == (status, {"error": sentence})


def test_other_errors_are_json_too(client: TestClient) -> None:
    assert client.get("/nothing").status_code == 404
    assert client.get("/tag").status_code == 405
    assert client.post("/tag", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    for path in ("/nothing", "/tag"):
        assert set(client.get(path).json()) == {"error"}


def test_every_answer_has_security_headers_and_an_identifier(client: TestClient) -> None:
    for response in (client.get("/health"), client.get("/nothing"), client.post("/tag", content=b"")):
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        assert len(response.headers["X-Request-ID"]) == 16
        assert "Access-Control-Allow-Origin" not in response.headers
    assert client.get("/health", headers={"X-Request-ID": "mine-1"}).headers["X-Request-ID"] == "mine-1"
    assert client.get("/health", headers={"X-Request-ID": "not mine!"}).headers["X-Request-ID"] != "not mine!"


def test_a_bug_is_no_traceback_and_the_log_has_nothing_of_the_text(
    taggers: dict[str, Tagger], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "Rumpelstiltskin"

    def fail(*_: Any, **options: Any) -> list[Any]:
        raise RuntimeError(f"cannot tag {secret}")

    with caplog.at_level(logging.INFO, "diffusion_mf.serving"), client_of({"pos": taggers["pos"]}) as client:
        response = client.post("/tag", json={"texts": [secret]})
        assert response.status_code == 200
        monkeypatch.setattr(taggers["pos"], "read_requests", fail)
        response = client.post("/tag", json={"texts": [secret]})
        assert response.status_code == 500
        assert response.json() == {"error": "The server has failed; its log says where."}
        assert client.post("/tag", json={"texts": [secret], secret: 1}).status_code == 422
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert not [line for line in lines if secret in line]
    rows = [json.loads(line) for line in lines]
    assert [row["status"] for row in rows if row["event"] == "request"] == [200, 500, 422]
    assert next(row for row in rows if row["event"] == "request").items() >= {"model": "pos", "units": 1}.items()
    (failure,) = (row for row in rows if row["event"] == "failure")
    assert failure["exception"] == "RuntimeError"
    assert any("models.py" in frame for frame in failure["frames"])


def test_a_token_is_asked_for(taggers: dict[str, Tagger]) -> None:
    with client_of({"pos": taggers["pos"]}, token=TOKEN) as client:
        basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
        for path in ("/models", "/metrics"):
            for given in (
                None,
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN[:-1]}",
                "Bearer",
                f"Digest {TOKEN}",
                "Basic !",
                TOKEN,
            ):
                response = client.get(path, headers={} if given is None else {"Authorization": given})
                assert response.status_code == 401, given
                assert response.headers["WWW-Authenticate"] == "Bearer"
            for given in (f"Bearer {TOKEN}", f"Basic {basic}"):
                assert client.get(path, headers={"Authorization": given}).status_code == 200
        assert client.post("/tag", json={"texts": ["a"]}).status_code == 401
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"token": []}]


def test_only_named_origins_may_use_it_from_web_pages(taggers: dict[str, Tagger]) -> None:
    asked = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
    with client_of({"pos": taggers["pos"]}, origins=("https://good.example",), token=TOKEN) as client:
        response = client.options("/tag", headers=asked)
        assert response.headers["Access-Control-Allow-Origin"] == "https://good.example"
        other = client.options("/tag", headers=asked | {"Origin": "https://bad.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_a_page_is_served_where_there_is_one(taggers: dict[str, Tagger], tmp_path: Path) -> None:
    tmp_path.joinpath("index.html").write_text("<p>Hello</p>", encoding="utf-8")
    with client_of({"pos": taggers["pos"]}, page=tmp_path, token=TOKEN) as client:
        assert client.get("/").text == "<p>Hello</p>"
        assert client.get("/models").status_code == 401


def test_the_description_has_every_body_with_examples_that_work(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    for path in ("/tag", "/write", "/setup", "/predict", "/webhook"):
        content = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"]["$ref"].split("/")[-1] in description["components"]["schemas"]
        for example in content["examples"].values():
            body = example["value"] | ({"model": "ner"} if path in ("/tag", "/write") else {})
            if "clamps" in body:
                body["clamps"] = [{"0": "S-PER"}]  # this model has other labels
            assert client.post(path, json=body).status_code == 200
    answer = description["paths"]["/tag"]["post"]["responses"]["200"]["content"]["application/json"]
    assert schemas.TagAnswer.model_validate(answer["example"])
    assert answer["schema"]["$ref"].endswith("/TagAnswer")
    posts = {
        path: methods["post"]["requestBody"]["content"]
        for path, methods in description["paths"].items()
        if "post" in methods
    }
    assert all(each.keys() & {"example", "examples"} for content in posts.values() for each in content.values())


def test_examples_of_streams_and_files_work() -> None:
    with client_of({"en-ner": Tagger.load("en-ner", device="cpu")}) as client:
        for path, (kind,) in (("/tag/stream", ["application/x-ndjson"]), ("/read", ["application/octet-stream"])):
            content = client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]
            answer = client.post(path, content=content[kind]["example"].encode(), headers={"Content-Type": kind})
            assert answer.status_code == 200
            assert "error" not in answer.text


@pytest.mark.parametrize("file_format", [each for each in FileFormat if each not in (FileFormat.RAW, FileFormat.BRAT)])
def test_files_are_of_a_kind_that_the_description_has(client: TestClient, file_format: FileFormat) -> None:
    content = client.get("/openapi.json").json()["paths"]["/write"]["post"]["responses"]["200"]["content"]
    body = {"model": "ner", "format": file_format, "sentences": [{"units": ["John"], "labels": ["S-PER"]}]}
    assert client.post("/write", json=body).headers["content-type"].split(";")[0] in content


def test_the_description_says_which_bodies_and_formats_are_taken(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    choices = description["components"]["schemas"]["TagRequest"]["oneOf"]
    texts, sentences = ["John sings."], [["John", "sings"]]
    for body in (
        {},
        {"texts": texts},
        {"sentences": sentences},
        {"texts": texts, "sentences": None},
        {"texts": None, "sentences": None},
        {"texts": texts, "sentences": sentences},
    ):
        matching = [name for choice in choices for name in choice["required"] if isinstance(body.get(name), list)]
        response = client.post("/tag", json={"model": "ner", **body})
        assert (response.status_code == 200) == (len(matching) == 1)
    parameters = {each["name"]: each["schema"] for each in description["paths"]["/read"]["post"]["parameters"]}
    assert parameters["format"]["enum"] == list(FileFormat)
    response = client.post(
        "/read?model=ner&format=", content=b"a", headers={"Content-Type": "application/octet-stream"}
    )
    assert response.status_code == 422


def test_examples_suit_a_model_of_another_scheme() -> None:
    with client_of({"en-ner": Tagger.load("en-ner", device="cpu")}) as client:
        for path, body in (("/write", schemas.WRITE_EXAMPLE), ("/tag", schemas.CLAMP_EXAMPLE)):
            assert client.post(path, json=body).status_code == 200


def test_words_of_the_training_data_wait_for_nothing() -> None:
    tagger = small_tagger("mean-field", Task.POS)
    with client_of({"pos": tagger}):
        assert tagger._words is not None
        assert len(tagger._words) >= len(tagger.model.vocabulary.form_counts)


def test_the_settings_decide_how_much_is_taken(taggers: dict[str, Tagger]) -> None:
    with client_of({"pos": taggers["pos"]}, request_units=12_000, sentence_units=11_000) as client:
        found = client.post("/tag", json={"sentences": [["a"] * 10_500]})
        assert len(found.json()["sentences"][0]["labels"]) == 10_500
        assert client.post("/tag", json={"sentences": [["a"]] + [[]] * 11_000}).status_code == 200
        assert client.post("/tag", json={"sentences": [["a" * 10_001]]}).status_code == 200
    empty = {"units": [], "labels": []}
    with client_of({"pos": taggers["pos"]}, body_bytes=1 << 21) as client:
        for path, body, sentence in (
            ("/tag", {"sentences": [["a"] * 10_001]}, "sentence 1 has 10,001 units, more than 2,000; divide it."),
            ("/tag", {"sentences": [[]] * 20_001}, "there are 20,001 sentences, more than 20,000 in a request; send them in several requests."),
            ("/tag", {"texts": [""] * 20_001}, "there are 20,001 texts, more than 20,000 in a request; send them in several requests."),
            ("/tag", {"texts": ["a" * 1_000_001]}, "the texts have 1,000,001 characters, more than 200,000; send them in several requests."),
            ("/write", {"format": "conllu", "sentences": [empty] * 20_001}, "there are 20,001 sentences, more than 20,000 in a request; send them in several requests."),
        ):  # fmt: skip
            response = client.post(path, json=body)
            assert (response.status_code, response.json()) == (413, {"error": sentence})
        response = client.post("/setup", json={"schema": "a" * 1_000_001})
        assert response.status_code == 422


def test_the_description_says_how_many_calls_are_possible(client: TestClient) -> None:
    properties = client.get("/openapi.json").json()["components"]["schemas"]["TagRequest"]["properties"]
    most = properties["calls"]["anyOf"][0]["maximum"]
    body = {"model": "ner", "sentences": ONE}
    assert client.post("/tag", json=body | {"calls": most}).status_code == 200
    refused = client.post("/tag", json=body | {"calls": most + 1})
    assert refused.json() == {"error": f"{most + 1} calls are not possible; ask for 1 to {most} of them."}


def test_a_server_is_called_by_its_own_name_only(taggers: dict[str, Tagger]) -> None:
    """Not by a name of another web site that resolves to its address (DNS rebinding)."""
    origins = ("https://labels.example:8443",)
    hosts = hosts_of_loopback("loopback.internal", origins)
    with client_of({"pos": taggers["pos"]}, hosts=hosts, origins=origins) as client:
        for host in ("localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]", "[::1]:80", "loopback.internal:1", "labels.example"):  # fmt: skip
            assert client.post("/tag", json={"texts": ["a"]}, headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1@evil.example", "", "::1", "localhost:80:80"):  # fmt: skip
            for path in ("/", "/tag", "/health"):
                response = client.get(path, headers={"Host": host, "Origin": f"http://{host}"})
                assert response.status_code == 403, host
                assert response.json()["error"].startswith("The server is not called by this name")
                assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert hosts_of_loopback("127.0.0.1", ["*"]) is None
    with client_of({"pos": taggers["pos"]}) as client:
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 200
