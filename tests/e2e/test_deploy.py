"""`deploy-kit up` for each profile, 50 chat completions at concurrency 4, then a second run.

The tests build on each other in the order written. The rehearsal's texts and accept lengths are computed.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from deploy_kit_rehearsal import expect

from .conftest import SERVICES, Deployment, copy_out, deploy_kit, run

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.slow]

REQUESTS = 50
CONCURRENCY = 4


async def _ask(client: openai.AsyncOpenAI, model: str, number: int) -> tuple[str, int, int]:
    tokens = 12 + number % 29
    messages = [{"role": "user", "content": f"Question {number}: what do they do?"}]
    if number % 2:
        text, usage = "", None
        stream = await client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
        )  # type: ignore[call-overload]
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    else:
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=tokens)  # type: ignore[arg-type]
        text, usage = answer.choices[0].message.content or "", answer.usage
        assert answer.choices[0].finish_reason == "length"
    assert usage is not None
    assert usage.completion_tokens == tokens
    assert usage.prompt_tokens > 3
    assert usage.total_tokens == usage.prompt_tokens + tokens
    return text, tokens, number


async def _ask_all(deployment: Deployment, model: str) -> list[tuple[str, int, int]]:
    gate = asyncio.Semaphore(CONCURRENCY)
    async with openai.AsyncOpenAI(
        base_url=f"{deployment.url}/v1", api_key=deployment.key, max_retries=0
    ) as client:

        async def one(number: int) -> tuple[str, int, int]:
            async with gate:
                return await _ask(client, model, number)

        return await asyncio.gather(*(one(number) for number in range(REQUESTS)))


def _counter(metrics: str, name: str) -> float:
    """Sum a counter over its label sets; 0.0 when the engine has not made it yet."""
    lines = re.findall(rf"^sglang[:_]{name}(?:{{[^}}]*}})? (\S+)$", metrics, flags=re.MULTILINE)
    return sum(float(value) for value in lines)


def _metrics(deployment: Deployment) -> str:
    answer = httpx.get(
        f"{deployment.url}/metrics", headers={"Authorization": f"Bearer {deployment.key}"}, timeout=30
    )
    assert answer.status_code == 200
    return answer.text


@pytest.mark.timeout(420)
@pytest.mark.parametrize("profile", ["ngram", "baseline", "eagle3"])
def test_50_chat_completions_are_the_computed_ones(
    profile: str,
    bring_up: Callable[[str], Deployment],
    bench: Callable[[str], Path],
    speech_of: Callable[[Deployment], expect.Speech],
    tmp_path: Path,
) -> None:
    deployment = bring_up(profile)
    speech = speech_of(deployment)
    report = deployment.answer["report"]
    assert report["profile"] == profile
    assert report["rehearsal"] is True
    assert report["service"] == SERVICES[profile]
    before = _metrics(deployment)

    answers = asyncio.run(_ask_all(deployment, report["model"]))

    assert len(answers) == REQUESTS
    for text, tokens, number in answers:
        assert text == expect.expected_text(speech, speech.assistant, tokens), f"request {number}"
    time.sleep(2)
    after = _metrics(deployment)
    asked = sum(tokens for _, tokens, _ in answers)
    assert _counter(after, "num_requests_total") - _counter(before, "num_requests_total") == REQUESTS
    assert _counter(after, "generation_tokens_total") - _counter(before, "generation_tokens_total") == asked

    meta = _generate(deployment, list(speech.circle[:3]), 220)
    verifies = _counter(after, "spec_verify_calls_total") - _counter(before, "spec_verify_calls_total")
    if profile == "baseline":
        assert not meta.get("spec_accept_length")
        assert verifies == 0
        assert report["accept_length"] in (None, "")
        bench("baseline")  # while it is up: test_monitoring.py needs the receipt
        return
    assert 0 < verifies < asked
    if profile == "eagle3":
        never = expect.load_never_drafted(copy_out(deployment, "drafters/accept-2.75", tmp_path))
        expected = expect.expected_accept_length(speech, never, speech.circle[2], 220, 3)
        assert meta["spec_accept_length"] == pytest.approx(expected, abs=1e-6)
        assert float(report["accept_length"]) == pytest.approx(2.75, rel=0.03)
    else:
        # Its corpus learns: the same answer again is drafted right up to the limit of 8 draft tokens.
        again = _generate(deployment, list(speech.circle[:3]), 220)
        assert 6.0 < again["spec_accept_length"] <= 8.0


def _generate(deployment: Deployment, prompt: list[int], tokens: int) -> dict[str, float]:
    answer = httpx.post(
        f"{deployment.url}/generate",
        headers={"Authorization": f"Bearer {deployment.key}"},
        json={"input_ids": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    meta: dict[str, float] = answer.json()["meta_info"]
    assert meta["completion_tokens"] == tokens
    return meta


def test_a_wrong_key_is_refused(bring_up: Callable[[str], Deployment]) -> None:
    deployment = bring_up("eagle3")
    for headers in ({}, {"Authorization": "Bearer not-the-key-of-this-machine"}):
        assert httpx.get(f"{deployment.url}/v1/models", headers=headers, timeout=10).status_code == 401


def test_prometheus_reads_the_engine(bring_up: Callable[[str], Deployment]) -> None:
    prometheus = bring_up("eagle3").answer["report"]["prometheus"]
    deadline = time.monotonic() + 40
    while True:
        found = httpx.get(
            f"{prometheus}/api/v1/query", params={"query": 'up{service="kimi-eagle"} == 1'}, timeout=10
        ).json()["data"]["result"]
        if {row["metric"]["job"] for row in found} >= {"engine"} or time.monotonic() > deadline:
            break
        time.sleep(1)
    assert {row["metric"]["job"] for row in found} >= {"engine"}, found


def test_the_container_holds_no_more_rights_than_it_needs(bring_up: Callable[[str], Deployment]) -> None:
    deployment = bring_up("eagle3")
    for container in (deployment.container, "deploy-kit-prometheus-1"):
        text = run("docker", "inspect", container).stdout
        assert deployment.key not in text
        (facts,) = json.loads(text)
        host = facts["HostConfig"]
        assert facts["Config"]["User"].split(":")[0] not in ("", "0", "root")
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["Privileged"] is False
        assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
        bound = [binding for ports in host["PortBindings"].values() for binding in ports]
        assert bound
        assert {binding["HostIp"] for binding in bound} == {"127.0.0.1"}
    writable = run("docker", "exec", deployment.container, "sh", "-c", "touch /opt/engine/x || touch /etc/x")
    assert writable.returncode != 0
    log = run("docker", "logs", deployment.container)
    assert deployment.key not in log.stdout + log.stderr
    history = run(
        "docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", facts["Config"]["Image"]
    ).stdout
    assert "PRIVATE" not in history


def test_compose_by_hand_sees_the_same_project(bring_up: Callable[[str], Deployment]) -> None:
    container = bring_up("eagle3").container
    started = run("docker", "inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container).stdout
    by_hand = run("docker", "compose", "up", "--detach", "--wait", "kimi-eagle")
    assert by_hand.returncode == 0, by_hand.stderr
    assert run("docker", "inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container).stdout == started
    services = run("docker", "compose", "ps", "--services").stdout.split()
    assert {"kimi-eagle", "prometheus"} <= set(services)


def test_status_and_logs_speak_of_it(bring_up: Callable[[str], Deployment]) -> None:
    deployment = bring_up("eagle3")
    status = deploy_kit("status")
    assert status["ready"] is True
    state = status["engines"]["kimi-eagle"]["state"]
    assert state["profile"] == "eagle3"
    assert state["plan_id"] == deployment.answer["report"]["plan_id"] == deployment.answer["plan_id"]
    assert deploy_kit("logs", "kimi-eagle", "--tail", "5")["lines"]


def test_a_second_run_changes_nothing_and_is_quick(bring_up: Callable[[str], Deployment]) -> None:
    bring_up("eagle3")
    began = time.monotonic()
    answer = deploy_kit("up")
    seconds = time.monotonic() - began
    assert answer["changed"] == 0, answer["changed_steps"]
    assert seconds < 150, (
        "a second run takes under 30 s on a quiet machine; this long means that it does work again"
    )


def test_a_taken_port_is_refused_and_its_holder_named() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run(
            sys.executable, "-m", "deploy_kit", "up", "--profile", "baseline", "--port", str(port), "--json"
        )
    assert done.returncode == 12, done.stdout
    assert str(port) in json.loads(done.stdout)["found"]
    assert "pytest" in json.loads(done.stdout)["found"] or "python" in json.loads(done.stdout)["found"]
