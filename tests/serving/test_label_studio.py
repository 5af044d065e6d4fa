"""Label Studio's protocol: configurations, predictions with offsets and scores, events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.serving.label_studio import read_config
from diffusion_mf.tagger import Tagger

TEXT = "😀 Ada Byron sings in Oslo. Eve left."
ENTITIES = """<View>
  <!-- entities of texts -->
  <Labels name="entity" toName="words"><Label value="Person" predicted_values="PER, Human"/><Label value="loc"/></Labels>
  <Header value="Text"/><Text name="words" value="$body"/>
</View>"""
TAGS = '<View><Text name="t" value="$text"/><Labels name="l" toName="t"><Label value="NOUN"/><Label value="VERB"/></Labels></View>'


@pytest.fixture(scope="module")
def taggers() -> dict[str, Tagger]:
    return {"ner": small_tagger("diffusion-mf", Task.NER), "pos": small_tagger("mean-field", Task.POS)}


@pytest.fixture(scope="module")
def client(taggers: dict[str, Tagger]) -> Iterator[TestClient]:
    with client_of(taggers) as client:
        yield client


def predict(client: TestClient, config: str, *data: dict[str, Any], **others: Any) -> Any:
    tasks = [{"id": number, "data": each} for number, each in enumerate(data)]
    body = {"tasks": tasks, "label_config": config, "project": "1.2", "params": {"context": None}, **others}
    return client.post("/predict", json=body)


def test_regions_have_offsets_labels_of_the_configuration_and_scores(
    client: TestClient, taggers: dict[str, Tagger]
) -> None:
    answer = predict(client, ENTITIES, {"body": TEXT}, {"body": ""}).json()
    names = {"PER": "Person", "LOC": "loc"}
    expected = [
        (result.offsets[span.start][0], result.offsets[span.end - 1][1], names[span.label], span.confidence)
        for result in taggers["ner"].tag_text(TEXT)
        for span in result.spans
        if span.label in names
    ]
    assert expected
    prediction, empty = answer["results"]
    assert empty == {"result": [], "score": 0.0, "model_version": "ner"}
    for region, (start, end, label, score) in zip(prediction["result"], expected, strict=True):
        assert region["value"] == {"start": start, "end": end, "text": TEXT[start:end], "labels": [label]}
        assert (region["from_name"], region["to_name"], region["type"]) == ("entity", "words", "labels")
        assert region["score"] == pytest.approx(score, abs=1e-5)
    assert prediction["score"] == min(region["score"] for region in prediction["result"])


def test_the_model_is_the_one_that_has_the_labels(client: TestClient) -> None:
    for config, name in ((ENTITIES, "ner"), (TAGS, "pos")):
        response = client.post("/setup", json={"schema": config, "project": "1", "hostname": "", "access_token": ""})
        assert response.json() == {"model_version": name}
    regions = predict(client, TAGS, {"text": "mira sel da"}).json()["results"][0]["result"]
    assert {region["value"]["text"] for region in regions} <= {"mira", "sel", "da"}
    # What /setup has said comes back.
    assert predict(client, TAGS, {"text": "a"}, model_version="ner").json()["results"][0]["model_version"] == "ner"


def test_events_are_acknowledged(client: TestClient) -> None:
    for action in ("ANNOTATION_CREATED", "START_TRAINING"):
        response = client.post("/webhook", json={"action": action, "project": {"id": 1, "label_config": ENTITIES}})
        assert (response.status_code, response.json()) == (200, {"status": "ignored"})
    assert client.get("/health").json()["model_class"] == "diffusion_mf"


def test_a_project_is_connected_and_predicted_as_label_studio_1_23_does_it(taggers: dict[str, Tagger]) -> None:
    token = "a-token-of-sixteen-characters-or-more"
    with client_of(taggers, token=token) as client:
        client.auth = ("anybody", token)
        assert client.get("/health").status_code == 200
        setup = {"project": "3.1790000000", "schema": ENTITIES, "hostname": "http://localhost:8000"}
        setup |= {"access_token": "0123456789abcdef", "extra_params": None}
        assert client.post("/setup", json=setup).json() == {"model_version": "ner"}
        assert client.get("/versions").json() == {"versions": ["ner", "pos"]}
        task: dict[str, Any] = {"id": 7, "data": {"body": TEXT}, "meta": {}, "is_labeled": False, "overlap": 1}
        task |= {"inner_id": 1, "project": 3, "updated_by": None, "file_upload": None, "annotations": []}
        params: dict[str, Any] = {"login": None, "password": None, "context": None}
        body = {"tasks": [task], "project": setup["project"], "label_config": ENTITIES, "params": params}
        (prediction,) = client.post("/predict", json=body).json()["results"]
        assert prediction["model_version"] == "ner"
        # While somebody annotates, the task comes with its predictions and with what has just been marked.
        marked = {"type": "labels", "value": {"start": 2, "end": 5, "labels": ["Person"]}}
        body["tasks"] = [task | {"predictions": [prediction | {"id": 4}], "drafts": []}]
        body["params"] = params | {"context": {"result": [marked]}}
        (again,) = client.post("/predict", json=body).json()["results"]
        assert [each["value"] for each in again["result"]] == [each["value"] for each in prediction["result"]]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("<View>", "is not XML"),
        ("", "is not XML"),
        ("<View/>", "has no Labels for a Text"),
        ('<View><Labels name="l" toName="i"/><Image name="i" value="$i"/></View>', "has no Labels for a Text"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><View>&b;</View>', "has a document type or entities"),
    ],
)
def test_other_configurations_are_refused(client: TestClient, config: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_config(config)
    response = predict(client, config, {"text": "a"})
    assert response.status_code == 422
    assert problem in response.json()["error"]


def test_tasks_without_a_text_and_labels_of_no_model_are_refused(client: TestClient) -> None:
    response = predict(client, ENTITIES, {"body": "a"}, {"text": "b"})
    assert response.json()["error"].startswith("task 2 has no text at data.body")
    other = ENTITIES.replace("PER, Human", "Ship").replace('"loc"', '"Boat"')
    assert "no model has any label" in predict(client, other, {"body": "a"}).json()["error"]
