"""The rehearsal tokenizer: byte-level, one token a word of the circle, every other text in bytes and
beginnings of words."""

import json
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from deploy_kit_rehearsal.expect import Speech
from deploy_kit_rehearsal.words import CIRCLE, WORDS_A_SENTENCE

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
END = "<|end|>"
# A token table as long as a multiple of this divides evenly among tensor-parallel ranks.
VOCABULARY_MULTIPLE = 64

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}"
    "{% endif %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """tokenizer: as saved; size: rows of the embedding table; speech: what follows what."""

    tokenizer: Tokenizer
    size: int
    speech: Speech


def _beginnings(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Given words in the byte alphabet, return the merges that build each from its front, one symbol at a
    time.

    Every merge takes a beginning of a word and its next symbol. Words that start with the space symbol come
    first, so that a merge for a word without it never acts inside another word's beginning.
    """
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
    return list(merges)


def build_vocabulary() -> Vocabulary:
    """Return the tokenizer made by code, with the speech its token numbers give."""
    space = "Ġ"  # the byte alphabet's sign for a space
    opening = CIRCLE[0].strip()
    spoken = tuple(word.replace(" ", space) for word in CIRCLE)
    merges = _beginnings((*spoken, opening))

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: number for number, piece in enumerate(symbols)}
    for left, right in merges:
        ids.setdefault(left + right, len(ids))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[^\s]+|\s"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )

    circle = tuple(ids[word] for word in spoken)
    speech = Speech(
        circle=circle,
        opening=ids[opening],
        assistant=tokenizer.get_vocab(with_added_tokens=True)["<|assistant|>"],
        words_a_sentence=WORDS_A_SENTENCE,
        pieces={**dict(zip(circle, CIRCLE, strict=True)), ids[opening]: opening},
    )
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    return Vocabulary(tokenizer, -(-tokens // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE, speech)


def tokenizer_files(vocabulary: Vocabulary, max_tokens: int) -> dict[str, str]:
    """Return the tokenizer's files by name, as Transformers reads them."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": vocabulary.tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }
