"""Requests made from the OpenAPI description, good ones and bad ones: every answer is one that it describes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis.errors import HypothesisException, Unsatisfiable
from hypothesis.internal.conjecture import providers
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    AcceptedNegativeData,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .summary import Summary
from .target import Target

WAIT_MS = 20
TURNS = 50
"""Some operations have fewer requests than their share: the others are asked again, with other seeds."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def fuzz(directory: Path, seed: int, inputs: int) -> Summary:
    """Send so many requests, shared among the operations; half of them break the description."""
    summary = Summary("http", seed)
    with Target(directory) as target, requests.Session() as session:
        session.trust_env = False
        schema = schemathesis.openapi.from_url(f"{target.url}/static/openapi.json")
        strategies = list(inputs_of(schema))
        for turn in range(TURNS):
            share = math.ceil((inputs - summary.inputs) / len(strategies))
            for mode, operation in strategies:

                def send(case: Any, mode: GenerationMode = mode) -> None:
                    summary.inputs += 1
                    told = _send(case, target.url, session, mode, summary)
                    if told is not None:
                        summary.violations.append(told)

                if summary.inputs < inputs:
                    many(operation.as_strategy(generation_mode=mode), send, seed + turn, share)
    summary.violations += target.violations
    summary.figures = target.figures
    return summary


def inputs_of(schema: Any) -> Iterator[tuple[GenerationMode, Any]]:
    """Each operation, with what the description allows and with what it does not."""
    operations = [found.ok() for found in schema.get_all_operations()]
    for mode in (GenerationMode.NEGATIVE, GenerationMode.POSITIVE):
        for operation in operations:
            yield mode, operation


def many(strategy: Any, send: Callable[[Any], None], seed: int, most: int) -> None:
    """Call it with so many examples, the same everywhere with the same seed; fewer when there are no more, and none
    when there cannot be any."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def run(case: Any) -> None:
        send(case)

    try:
        with _same_everywhere():
            run()
    except Unsatisfiable:  # no request breaks the description of an operation without parameters
        pass
    except HypothesisException as odd:
        logging.getLogger(__name__).info("no more examples: %r", odd)


@contextmanager
def _same_everywhere() -> Iterator[None]:
    """Hypothesis mixes numbers and texts of the source files that are loaded into what it draws: without them a seed's
    inputs do not depend on what else has run, nor on a change somewhere else."""
    usual = providers._get_local_constants
    providers._get_local_constants = providers.Constants
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = usual
        providers.CONSTANTS_CACHE.cache.clear()


def _send(case: Any, url: str, session: requests.Session, mode: GenerationMode, summary: Summary) -> str | None:
    """Send a request; what is wrong with its answer."""
    _shorten_waits(case)
    try:
        response = case.call(base_url=url, session=session, timeout=30)
    except requests.exceptions.InvalidHeader:
        summary.answers["not sent"] += 1
        return None
    except requests.exceptions.RequestException as error:
        summary.answers["no answer"] += 1
        return f"{case.operation.label}: no answer: {error!r}; {case.as_curl_command()[:2000]}"
    summary.answers[str(response.status_code)] += 1
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS
    try:
        case.validate_response(response, checks=checks)
    except (Failure, FailureGroup) as failure:
        found = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
        # a name or a body over its bound is refused with 413, which the check does not count as a refusal
        real = [one for one in found if not (isinstance(one, AcceptedNegativeData) and response.status_code == 413)]
        if real:
            said = "; ".join(" ".join(str(one).split())[:300] for one in real)
            return f"{case.operation.label}: {response.status_code}: {said}; {case.as_curl_command()[:2000]}"
    return None


def _shorten_waits(case: Any) -> None:
    """A long poll that found nothing would take a minute."""
    query, body = case.query, case.body
    if isinstance(query, dict) and "wait" in query and "autoAck" in {p.name for p in case.operation.query}:
        case.query = {**query, "timeout": WAIT_MS}
    if isinstance(body, dict) and isinstance(body.get("maxWaitMs"), int | float):
        body["maxWaitMs"] = min(body["maxWaitMs"], WAIT_MS)
