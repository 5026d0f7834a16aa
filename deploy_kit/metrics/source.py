"""Getting the text of a scrape: a file, standard input, or a URL."""

from __future__ import annotations

from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_stdin, read_text

LIMIT_BYTES = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0


def read_source(source: str, *, api_key_file: str | None = None) -> str:
    """Given a path, `-` or an http(s) URL, return the text. A refusal's body is returned too: it is
    explained. Raises `DeployKitError` when there is nothing to read."""
    if source == "-":
        return read_stdin(LIMIT_BYTES)
    if source.startswith(("http://", "https://")):
        key = None if api_key_file is None else read_text(api_key_file, what="API key").strip()
        return fetch(source, api_key=key)
    return read_text(Path(source), what="metrics text", limit_bytes=LIMIT_BYTES)


def fetch(url: str, *, api_key: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Return what `url` answers, whatever its status; `DeployKitError` when it does not answer."""
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.get(url, headers=headers, timeout=timeout_seconds, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise DeployKitError(
            f"no answer from {url}: {error or type(error).__name__}",
            key="url",
            found=url,
            remedy="is the engine up, and is this its port? deploy-kit status shows it",
            exit_code=ExitCode.INPUT,
        ) from error
    if answer.status_code != httpx.codes.OK and not answer.text.strip():
        return f"{answer.status_code} {answer.reason_phrase}\n"
    return answer.text
