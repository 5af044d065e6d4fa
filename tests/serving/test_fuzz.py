"""Whatever the description of the API allows, and much that it does not, gets an answer that it describes."""

from __future__ import annotations

import hypothesis
import schemathesis
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
# The body of the stream is no JSON value, and it has tests of its own.
schema = schemathesis.openapi.from_asgi("/openapi.json", APP).exclude(path="/tag/stream")


@schema.parametrize()
@hypothesis.settings(max_examples=15, suppress_health_check=list(hypothesis.HealthCheck))
def test_answers_are_as_described(case: schemathesis.Case) -> None:
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    case.call_and_validate(checks=checks)
