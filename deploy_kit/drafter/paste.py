"""Understanding a pasted description: sections as people paste them, in any order, any of them missing."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from deploy_kit.drafter.description import Description, Listed, MapFacts
from deploy_kit.drafter.listing import header_rows, is_header, rows_in
from deploy_kit.drafter.map_text import agreement, map_ends, map_of_section, printed_map
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.pasted import plain

PASTE_LIMIT_BYTES = 8 * 2**20
# Longer texts are not tried as a Python dict.
_LITERAL_LIMIT = 2**18
_TITLE = re.compile(r"^\s*(?:-{3,}|={3,}|#{1,4})\s+(\S.*?)\s*[-=#]*$")
_METRIC_COMMENT = re.compile(r"^\s*#\s+(?:TYPE|HELP)\s")
_FENCE = re.compile(r"^\s*```")
_ELLIPSIS = re.compile(r"\.\.\.|…|\[truncated\]|\(\d+ more\b")
_PARTIAL_TITLE = re.compile(
    r"used fields|excerpt|shortened|partial|some fields|truncated|first \d+|head -", re.IGNORECASE
)
_VERSION = re.compile(
    r"\bsglang(?![\w-]*kernel)[^\d\n]{0,24}?v?(\d+\.\d+\.\d+(?:\.?post\d+)?)", re.IGNORECASE
)
_SERVER_ARG = re.compile(
    r"\b(attention_backend|decode_attention_backend|prefill_attention_backend|quantization|speculative_algorithm|"
    r"speculative_draft_model_path|speculative_draft_model_quantization|speculative_draft_attention_backend|"
    r"speculative_num_steps|speculative_eagle_topk|speculative_num_draft_tokens|context_length|tp_size|dtype)="
    r"(?:'([^']*)'|\"([^\"]*)\"|(\d+))"
)
_ENVIRONMENT = re.compile(r"\b((?:SGLANG|SGL)_[A-Z0-9_]+)=[\"']?([^\s\"']+)")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)(?:[= \t]+(?!-)(\"[^\"]*\"|'[^']*'|[^\s\\]+))?")


@dataclass(frozen=True)
class Section:
    """A titled piece of the paste."""

    title: str
    body: str

    @property
    def partial(self) -> bool:
        return bool(_PARTIAL_TITLE.search(self.title) or _ELLIPSIS.search(self.body))


def parse_paste(text: str, *, source: str = "pasted description") -> Description:
    """Given what someone pasted, return a description; what cannot be read is remarked on, never guessed.

    Raises `DeployKitError` when neither a draft config nor a listing of weights is in it.
    """
    text = plain(text.replace("\r\n", "\n").replace("\r", "\n"))
    known = Description(source=source)
    remarks: list[str] = []
    sections = split_sections(text)
    for section in sections:
        known = _read(section, known, remarks)
    if known.agreement is None:
        said = (agreement(f"{section.title}\n{section.body}") for section in sections)
        known = replace(known, agreement=next((same for same in said if same is not None), None))
    if known.d2t is None:
        known = replace(known, d2t=printed_map(text))
    flags, environment = _flags(text)
    version = _VERSION.search(_without_config(text))
    known = replace(
        known,
        flags={**flags, **known.flags},
        environment={**environment, **known.environment},
        sglang_version=known.sglang_version or (version.group(1) if version else None),
        remarks=tuple(remarks),
    )
    if known.config is None and not known.tensors:
        raise DeployKitError(
            "no drafter in this description",
            file=source,
            found=f"{len(text)} characters, "
            + ("; ".join(remarks) if remarks else "no config.json and no listing of weights"),
            allowed="sections such as `--- draft config.json`, `--- target config.json`, `--- "
            "safetensors header`",
            remedy="paste the drafter's config.json and a listing of name, dtype, shape",
            exit_code=ExitCode.INPUT,
        )
    return known


def split_sections(text: str) -> list[Section]:
    """Return the titled sections of a paste; what stands before the first title has the title ""."""
    sections: list[Section] = []
    title = ""
    lines: list[str] = []
    for line in text.split("\n"):
        found = _TITLE.match(line)
        if found and not line.lstrip().startswith(('"', "{")) and not _METRIC_COMMENT.match(line):
            sections.append(Section(title, "\n".join(lines)))
            title, lines = found.group(1).strip("`* "), []
        elif not _FENCE.match(line):
            lines.append(line)
    sections.append(Section(title, "\n".join(lines)))
    return [section for section in sections if section.body.strip()]


def _read(section: Section, known: Description, remarks: list[str]) -> Description:
    title = section.title.lower()
    of_target = (
        bool(re.search(r"\b(target|verifier|base model|main model)\b", title)) and "draft" not in title
    )
    if "d2t" in title or "t2d" in title:
        return _read_map(section, known, title)
    if re.search(r"index\.json|weight_map", title):
        return known
    if of_target and re.search(r"header|tensors|weights", title) and "config" not in title:
        return known
    if re.search(r"header|tensor|weights|listing|state.?dict|shapes", title) and not re.search(
        r"config", title
    ):
        return _read_listing(section, known)
    if re.search(r"other files|files|\bls\b|folder|directory", title):
        names = re.findall(r"[\w.\-]+\.[A-Za-z0-9]{1,12}\b", section.body)
        return replace(known, other_files=(*known.other_files, *names))
    if re.search(r"\blog\b|logs|output|metrics", title):
        return replace(known, log=known.log + "\n" + section.body)
    if of_target or "config" in title or "{" in section.body:
        return _read_config(section, known, remarks, of_target=of_target)
    if rows_in(section.body):
        return _read_listing(section, known)
    return replace(known, log=known.log + "\n" + section.body)


def _read_config(section: Section, known: Description, remarks: list[str], *, of_target: bool) -> Description:
    whose = "target" if of_target else "draft"
    try:
        tables, rest, damaged = json_tables(section.body)
    except ValueError as error:
        if not of_target and section.title and "config" not in section.title.lower():
            return replace(known, log=known.log + "\n" + section.body)
        remarks.append(f"the {whose} config.json cannot be read: {error}")
        return known
    if not tables:
        if rows_in(section.body):
            return _read_listing(section, known)
        fields = _plain_table(section.body) or _loose_fields(section.body)
        if fields and of_target:
            return replace(known, target={**(known.target or {}), **fields})
        if "architectures" in fields:
            return replace(known, config={**(known.config or {}), **fields}, config_complete=False)
        return replace(known, log=known.log + "\n" + section.body)
    for table in tables:
        if is_header(table):
            known = _with_tensors(known, header_rows(table), complete=not section.partial)
        elif of_target or (known.config is not None and known.target is None and not section.title):
            known = replace(known, target={**(known.target or {}), **table})
        elif known.config is None:
            known = replace(known, config=table, config_complete=not (section.partial or damaged))
        else:
            known = replace(known, config={**known.config, **table})
    return _read_listing(Section("", rest), known) if rows_in(rest) else known


def json_tables(text: str) -> tuple[list[dict[str, Any]], str, bool]:
    """Return the JSON objects in a text, the text around them, and whether one had to be mended (`...`,
    commas).

    Raises `ValueError` when there is a brace but nothing readable behind it.
    """
    tables: list[dict[str, Any]] = []
    rest: list[str] = []
    damaged = False
    position = 0
    while (start := text.find("{", position)) >= 0:
        rest.append(text[position:start])
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except ValueError as error:
            end = _closing(text, start)
            mended = re.sub(r"(?m)^\s*(?:\"?(?:\.\.\.|…)\"?|//.*|#.*),?\s*$", "", text[start:end])
            mended = re.sub(r",\s*(?:\.\.\.|…)\s*(?=[}\]])", "", mended)
            mended = re.sub(r",(\s*[}\]])", r"\1", mended)
            mended = re.sub(
                r"\bTrue\b", "true", re.sub(r"\bFalse\b", "false", re.sub(r"\bNone\b", "null", mended))
            )
            try:
                value = json.loads(mended)
                damaged = True
            except (ValueError, RecursionError):
                value = _python_table(text[start:end])
                if value is None:
                    raise ValueError(str(error)[:120]) from error
        if isinstance(value, dict):
            tables.append(value)
        position = end
    rest.append(text[position:])
    return tables, "".join(rest), damaged


def _python_table(text: str) -> Any:
    """Return a dict as Python prints it (quotes of its own kind), as JSON would give it; None for anything
    else."""
    if len(text) > _LITERAL_LIMIT:
        return None
    try:
        return json.loads(json.dumps(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _closing(text: str, start: int) -> int:
    depth, quoted, escaped = 0, False, False
    for place in range(start, len(text)):
        letter = text[place]
        if quoted:
            quoted = not (letter == '"' and not escaped)
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)


def _read_listing(section: Section, known: Description) -> Description:
    if "{" in section.body:
        try:
            tables, rest, _ = json_tables(section.body)
        except ValueError:
            tables, rest = [], section.body
        rows = [row for table in tables if is_header(table) for row in header_rows(table)]
        if rows:
            return _with_tensors(known, rows, complete=not section.partial)
        section = Section(section.title, rest)
    rows = [row for row, _ in rows_in(section.body)]
    if not rows:
        return known
    for row, remark in rows_in(section.body):
        if row.name.endswith("d2t") and known.d2t is None and (facts := map_ends(remark)) is not None:
            known = replace(known, d2t=facts)
    return _with_tensors(known, rows, complete=not section.partial)


def _with_tensors(known: Description, rows: list[Listed], *, complete: bool) -> Description:
    return replace(
        known,
        tensors={**(known.tensors or {}), **{row.name: row for row in rows}},
        listing_complete=known.listing_complete and complete,
    )


def _read_map(section: Section, known: Description, title: str) -> Description:
    import numpy as np

    if "d2t" not in title:
        return known
    same = agreement(f"{section.title}\n{section.body}")
    if same is not None:
        return replace(known, agreement=same)
    facts = map_of_section(section.body, last_only=bool(re.search(r"\blast\b", title)))
    if facts is None:
        return known
    length = next(
        (t.shape[0] for t in (known.tensors or {}).values() if t.name.endswith("d2t") and t.shape), None
    )
    if length == len(facts.first) and not facts.last:
        facts = MapFacts(values=np.array(facts.first, dtype=np.int64))
    if re.search(r"reference|other|known.good|of the target", title):
        return replace(known, reference_d2t=facts)
    return replace(known, d2t=facts)


def _plain_table(body: str) -> dict[str, Any]:
    """Return `key: value` lines (YAML without aliases, which could grow without bound), or nothing."""
    import yaml

    if len(body) > _LITERAL_LIMIT or re.search(r"[&*]\w", body):
        return {}
    try:
        table = yaml.safe_load(body)
        return dict(json.loads(json.dumps(table))) if isinstance(table, dict) else {}
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return {}


def _loose_fields(body: str) -> dict[str, Any]:
    names = (
        "hidden_size|num_hidden_layers|vocab_size|max_position_embeddings|num_attention_heads|"
        "model_max_length"
    )
    return {name: int(value) for name, value in re.findall(rf"\b({names})\b\W{{1,4}}(\d{{1,12}})\b", body)}


def _flags(text: str) -> tuple[dict[str, str], dict[str, str]]:
    # A section title such as `--- draft` is no flag: flags have no space after their dashes.
    joined = re.sub(r"\\\n", " ", text)
    flags = parse_flags(joined)
    for name, single, double, number in _SERVER_ARG.findall(joined):
        flags.setdefault(name.replace("_", "-"), single or double or number)
    return flags, dict(_ENVIRONMENT.findall(joined))


def parse_flags(text: str) -> dict[str, str]:
    """Return command-line flags without their dashes; a switch has the value ""."""
    return {name: value.strip("\"'") for name, value in _FLAG.findall(text)}


def _without_config(text: str) -> str:
    # Versions are looked for outside quoted JSON strings' keys such as "transformers_version".
    return re.sub(r'"[a-z_]*version[a-z_]*"\s*:\s*"[^"]*"', "", text)
