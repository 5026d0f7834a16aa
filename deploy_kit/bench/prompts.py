"""What is asked: a built-in set of real prose and code, a file of prompts, or multi-turn scripts.

Never random tokens: a drafter guesses real text far better, so they would measure another accept length.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

BUILT_IN = "prose-and-code"
CHARACTERS_PER_TOKEN = 4  # of English prose and code, roughly; the server's own count goes into the receipt


@dataclass(frozen=True)
class PromptSet:
    """Prompts in a fixed order. Each is a script: the user's turns, one for a plain prompt."""

    name: str
    scripts: tuple[tuple[str, ...], ...]

    @property
    def sha256(self) -> str:
        """A hash over every turn of every script."""
        text = json.dumps(self.scripts, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def built_in(prompt_tokens: int | None = None) -> PromptSet:
    """Return the built-in set (written for this project): its passages, or, with `prompt_tokens`, prompts of
    about that length made of whole passages in different orders, the last one being the task.

    Raises `DeployKitError` beyond what the set holds: repeated text would flatter n-gram speculation.
    """
    text = (resources.files("deploy_kit.bench") / "data" / f"{BUILT_IN}.txt").read_text(encoding="utf-8")
    passages = [part.strip() for part in text.split("=====")]
    if prompt_tokens is None:
        return PromptSet(BUILT_IN, tuple((passage,) for passage in passages))
    wanted = prompt_tokens * CHARACTERS_PER_TOKEN
    longest = sum(len(passage) for passage in passages)
    if wanted > longest:
        raise DeployKitError(
            "the built-in prompts are not that long, and repeating them would flatter n-gram speculation",
            key="--prompt-tokens",
            found=prompt_tokens,
            allowed=f"up to {longest // CHARACTERS_PER_TOKEN}",
            remedy="give long texts of your own with --prompts FILE",
            exit_code=ExitCode.USAGE,
        )
    scripts = []
    for number, passage in enumerate(passages):
        rest = [other for other in passages if other != passage]
        random.Random(number).shuffle(rest)  # noqa: S311  (an order, not a secret)
        context: list[str] = []
        while sum(map(len, context)) + len(passage) < wanted and rest:
            context.append(rest.pop())
        whole = "\n\n".join([*context, passage])
        scripts.append((whole[-wanted:] if len(whole) > wanted else whole,))
    return PromptSet(f"{BUILT_IN}-{prompt_tokens}", tuple(scripts))


def from_file(path: Path) -> PromptSet:
    """Given a file of prompts, return them: `.jsonl` with `{"prompt": …}` or `{"turns": [user, user, …]}` a
    line (the assistant's turns are the server's own answers), else plain text, prompts set apart by lines
    of `=====`."""
    text = read_text(path, what="prompt file")
    scripts: list[tuple[str, ...]] = []
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                scripts.append(_script(line, path, number))
    else:
        scripts = [(part.strip(),) for part in text.split("\n=====") if part.strip("=\n\t ")]
    if not scripts:
        raise DeployKitError("no prompt in the file", file=path, exit_code=ExitCode.INPUT)
    return PromptSet(path.name, tuple(scripts))


def _script(line: str, path: Path, number: int) -> tuple[str, ...]:
    key = f"line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DeployKitError(
            f"no valid JSON: {error}", file=path, key=key, exit_code=ExitCode.INPUT
        ) from error
    if isinstance(value, dict):
        turns = value.get("turns", [value["prompt"]] if "prompt" in value else None)
        if isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns):
            return tuple(turns)
    raise DeployKitError(
        "neither a prompt nor a script",
        file=path,
        key=key,
        found=line[:80],
        allowed='{"prompt": "…"} or {"turns": ["…", "…"]}',
        exit_code=ExitCode.INPUT,
    )
