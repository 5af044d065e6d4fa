"""Whatever the description of the API allows, and much that it does not, gets an answer that it describes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served_models import application
from small_models import small_tagger

from diffusion_mf.data.corpus import Task

APP = application({"ner": small_tagger("mean-field", Task.NER)})


def with_small_bounds(value: Any) -> Any:
    """A description without long lists and strings: making them would take most of the time."""
    if isinstance(value, list):
        return [with_small_bounds(each) for each in value]
    if not isinstance(value, dict):
        return value
    small = {"maxItems": 3, "maxLength": 20, "maxProperties": 3}
    return {
        key: min(each, small[key]) if key in small and isinstance(each, int) else with_small_bounds(each)
        for key, each in value.items()
    }


# The body of the stream is no JSON value; it has tests of its own.
schema = schemathesis.openapi.from_dict(with_small_bounds(APP.openapi())).exclude(path="/tag/stream")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(APP, port=0, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join(30)


@schema.parametrize()
@hypothesis.settings(max_examples=10, suppress_health_check=list(hypothesis.HealthCheck))
def test_answers_are_as_described(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address, checks=CHECKS)
