"""What the rehearsal models will say, and how many drafts will be accepted: computed, never measured.

Pure standard library, so that tests outside the engine can use it too. Token ids only; texts come from
`pieces`.
"""

import itertools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "rehearsal.json"


@dataclass(frozen=True)
class Speech:
    """What a rehearsal target says: after each token exactly one other.

    circle: the tokens said in a circle, in order; opening: the circle's first word without its leading space,
    said at the start of an answer; assistant: the token that ends a chat prompt; pieces: the text of every
    token that can be said.
    """

    circle: tuple[int, ...]
    opening: int
    assistant: int
    words_a_sentence: int
    pieces: dict[int, str]

    def successor(self, token: int) -> int:
        """Return the token said after `token`: the next of the circle; `opening` after the assistant's mark;
        after any other token the first word of the sentence that its number falls on."""
        place = self._places().get(self.circle[0] if token == self.opening else token)
        if place is not None:
            return self.circle[(place + 1) % len(self.circle)]
        if token == self.assistant:
            return self.opening
        sentences = len(self.circle) // self.words_a_sentence
        return self.circle[self.words_a_sentence * (token % sentences)]

    def _places(self) -> dict[int, int]:
        return {token: place for place, token in enumerate(self.circle)}

    def tokens_after(self, last_prompt_token: int) -> Iterator[int]:
        """Yield the endless answer to a prompt that ends in `last_prompt_token`."""
        places = self._places()
        token = last_prompt_token
        while (place := places.get(token)) is None:
            token = self.successor(token)
            yield token
            if token == self.opening:
                place = 0
                break
        yield from itertools.islice(itertools.cycle(self.circle), place + 1, None)


def load_speech(target_dir: Path) -> Speech:
    """Given a rehearsal target's folder, return what it says (from its rehearsal.json)."""
    said = json.loads((target_dir / MANIFEST).read_text())["speech"]
    return Speech(
        circle=tuple(said["circle"]),
        opening=said["opening"],
        assistant=said["assistant"],
        words_a_sentence=said["words_a_sentence"],
        pieces={int(token): piece for token, piece in said["pieces"].items()},
    )


def load_never_drafted(drafter_dir: Path) -> frozenset[int]:
    """Given a rehearsal drafter's folder, return the tokens that it never drafts where they are right."""
    return frozenset(json.loads((drafter_dir / MANIFEST).read_text())["never_drafted"])


def expected_tokens(speech: Speech, last_prompt_token: int, count: int) -> list[int]:
    """Return the first `count` tokens of the answer to a prompt that ends in `last_prompt_token`."""
    return list(itertools.islice(speech.tokens_after(last_prompt_token), count))


def expected_text(speech: Speech, last_prompt_token: int, count: int) -> str:
    """Return the text of the first `count` tokens of that answer; for a chat pass `speech.assistant`."""
    return "".join(speech.pieces[token] for token in expected_tokens(speech, last_prompt_token, count))


def spread_evenly(places: int, chosen: int) -> list[int]:
    """Return `chosen` of the numbers 0 … places - 1 at distances as equal as can be."""
    return [place for place in range(places) if (place + 1) * chosen // places > place * chosen // places]


def never_drafted_for(circle: tuple[int, ...], accept_length: float) -> frozenset[int]:
    """Given the accept length wanted, return the circle's tokens to spoil: one in `accept_length`, none from
    4.0 on.

    A verify accepts drafts up to the next spoiled token, which the target then says itself, so with s of n
    tokens spoiled and no longer run between them than the drafter has steps, the accept length over a whole
    circle is n / s.
    """
    if accept_length < 1:
        raise ValueError(
            f"an accept length counts the bonus token, so it is at least 1.0, not {accept_length}"
        )
    spoiled = 0 if accept_length >= 4 else round(len(circle) / accept_length)
    return frozenset(circle[place] for place in spread_evenly(len(circle), spoiled))


def expected_accept_lengths(
    speech: Speech, never_drafted: Collection[int], last_prompt_token: int, count: int, num_steps: int
) -> list[int]:
    """Return the accept length of each verify that an answer of `count` tokens takes, with drafts of
    `num_steps` tokens.

    The first token comes from the prefill; a verify accepts the right drafts and adds the bonus token. The
    last verify may pass `count`: it is given in full here, while the answer is cut.
    """
    answer = expected_tokens(speech, last_prompt_token, count + num_steps + 1)
    lengths: list[int] = []
    said = 1
    while said < count:
        drafts = itertools.takewhile(
            lambda token: token not in never_drafted, answer[said : said + num_steps]
        )
        lengths.append(len(list(drafts)) + 1)
        said += lengths[-1]
    return lengths


def expected_accept_length(
    speech: Speech, never_drafted: Collection[int], last_prompt_token: int, count: int, num_steps: int
) -> float:
    """Return what SGLang reports as an answer's `spec_accept_length`: completion tokens over verifies."""
    return count / len(expected_accept_lengths(speech, never_drafted, last_prompt_token, count, num_steps))


def circle_accept_length(circle: tuple[int, ...], never_drafted: Collection[int], num_steps: int) -> float:
    """Return the accept length of an endless answer: tokens over verifies, once the walk repeats itself."""
    seen: dict[int, tuple[int, int]] = {}
    place = verifies = said = 0
    while place not in seen:
        seen[place] = (said, verifies)
        accepted = 0
        while accepted < num_steps and circle[(place + 1 + accepted) % len(circle)] not in never_drafted:
            accepted += 1
        said += accepted + 1
        verifies += 1
        place = (place + accepted + 1) % len(circle)
    said_before, verifies_before = seen[place]
    return (said - said_before) / (verifies - verifies_before)


class NgramMemory:
    """What SGLang's n-gram corpus has learned from the answers so far, and how many drafts it gets right
    next.

    Exact for one request at a time, in the order served from the server's start (its own warm-up request
    included), whose prompts contain no words of the circle in another order than the circle's.
    """

    # A verify adds the last so many tokens to the corpus (SGLang's --speculative-ngram-max-trie-depth).
    WINDOW = 18

    def __init__(self, speech: Speech, draft_tokens: int = 8) -> None:
        self._speech = speech
        self._drafts = draft_tokens - 1  # the first of the draft tokens is the last accepted one
        # How far the text after each token reaches inside one window: drafts never join two windows.
        self._reach: dict[int, int] = {}

    def serve(self, last_prompt_token: int, count: int) -> list[int]:
        """Return the accept length of each verify of an answer of `count` tokens (the last in full), and
        learn from it."""
        answer = [
            last_prompt_token,
            *expected_tokens(self._speech, last_prompt_token, count + self._drafts + 1),
        ]
        lengths: list[int] = []
        said = 1
        while said < count:
            lengths.append(min(self._reach.get(answer[said], 0), self._drafts) + 1)
            # The corpus gets what was said before this verify.
            for place in range(max(0, said + 1 - self.WINDOW), said):
                self._reach[answer[place]] = max(self._reach.get(answer[place], 0), said - place)
            said += lengths[-1]
        return lengths
