"""Readiness of an engine: the endpoint answers, the planned model is served, a real completion came back."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

# /ready exists since SGLang 0.5.20 and costs nothing; /health generates a token.
READY_PATHS = ("/ready", "/health")
HEALTH_TIMEOUT_SECONDS = 25.0


@dataclass(frozen=True)
class Readiness:
    """What one look at the engine found; `missing` says what does not hold yet."""

    ready: bool
    missing: str | None = None
    completion_tokens: int = 0


def look(
    base_url: str, served_model_name: str, *, api_key: str | None, timeout_seconds: float = 30.0
) -> Readiness:
    """Given an engine's address, return whether it is ready, cheapest question first. Never raises."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with httpx.Client(base_url=base_url, headers=headers, timeout=timeout_seconds) as client:
            models = client.get("/v1/models", timeout=5.0)
            if models.status_code != httpx.codes.OK:
                return Readiness(False, f"/v1/models answers {models.status_code}")
            served = [str(entry.get("id")) for entry in models.json().get("data", [])]
            if served_model_name not in served:
                return Readiness(False, f"serves {', '.join(served) or 'nothing'}, not {served_model_name}")
            for path in READY_PATHS:
                health = client.get(path, timeout=timeout_seconds)
                if health.status_code != httpx.codes.NOT_FOUND:
                    break
            if health.status_code != httpx.codes.OK:
                return Readiness(False, f"{path} answers {health.status_code}")
            answer = client.post(
                "/v1/completions",
                json={
                    "model": served_model_name,
                    "prompt": "One two three",
                    "max_tokens": 4,
                    "temperature": 0,
                },
            )
            if answer.status_code != httpx.codes.OK:
                return Readiness(False, f"a completion is answered with {answer.status_code}")
            tokens = int(answer.json()["usage"]["completion_tokens"])
            return Readiness(tokens > 0, None if tokens > 0 else "a completion came back empty", tokens)
    except httpx.ConnectError:
        return Readiness(False, "the port is closed")
    except httpx.TimeoutException as error:
        return Readiness(False, f"no answer in time ({type(error).__name__})")
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Readiness(False, f"an answer that makes no sense ({type(error).__name__})")


def healthy(base_url: str, *, api_key: str | None, timeout_seconds: float = HEALTH_TIMEOUT_SECONDS) -> bool:
    """Return whether the health endpoint answers 200 in time. False is "busy", never "dead"."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.get(f"{base_url}/health", headers=headers, timeout=timeout_seconds)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
