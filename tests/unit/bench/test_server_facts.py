"""What the server says of itself, and what is refused because of it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from deploy_kit.bench.run import About, ServerFacts, read_server_facts, refuse_another_profile
from deploy_kit.bench.stream import parse_endpoint
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def facts_of(answers: dict[str, tuple[int, Any]], model: str | None = None) -> ServerFacts:
    def answer(request: httpx.Request) -> httpx.Response:
        status, value = answers.get(request.url.path, (404, {}))
        return httpx.Response(status, json=value)

    async def read() -> ServerFacts:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as reader:
            return await read_server_facts(reader, parse_endpoint("http://127.0.0.1:1"), model)

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("status", "key"), [(401, "--api-key-file"), (403, "--api-key-file"), (404, "--model"), (200, "--model")]
)
def test_a_refused_key_is_told_from_a_server_without_models(status: int, key: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        facts_of({"/v1/models": (status, {})})
    assert caught.value.key == key
    assert caught.value.exit_code == ExitCode.FAILURE


@pytest.mark.parametrize("algorithm", [None, "EAGLE3", "NGRAM"])
def test_an_engine_that_speculates_is_no_baseline(algorithm: str | None) -> None:
    facts = facts_of({"/server_info": (200, {"speculative_algorithm": algorithm})}, model="m")
    refuse_another_profile(About(profile="eagle3"), facts)
    if algorithm is None:
        refuse_another_profile(About(profile="baseline"), facts)
        return
    with pytest.raises(DeployKitError) as caught:
        refuse_another_profile(About(profile="baseline"), facts)
    assert algorithm in str(caught.value.found)
