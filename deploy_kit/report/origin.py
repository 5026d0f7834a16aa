"""Where a report's numbers come from: host, versions, receipts, and the commands that make them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy_kit.receipts import Receipt
from deploy_kit.report.content import Code, Paragraph, Section, section, table


def host_section(name: str, receipts: Sequence[Receipt]) -> Section | None:
    """Return the host's facts, as the receipts have them."""
    facts: dict[str, Any] = {}
    for receipt in receipts:
        facts.update(receipt.host.facts)
    rows = [("name", name), *((key, _value(value)) for key, value in sorted(facts.items()))]
    return section(
        "The host", table("Read from the machine when the receipts were made", ("fact", "value"), rows)
    )


def versions_section(
    versions: Mapping[str, str], receipts: Sequence[Receipt], plans: Mapping[str, str | None]
) -> Section | None:
    """Return the exact versions, of the stack and, where they differ, of the probes' environments."""
    rows = [("stack", key, value) for key, value in sorted(versions.items())]
    for receipt in receipts:
        if receipt.kind != "bench":
            others = {key: value for key, value in receipt.versions.items() if versions.get(key) != value}
            rows += [
                (f"{receipt.kind} {receipt.short_id}", key, value) for key, value in sorted(others.items())
            ]
    return section(
        "Exact versions",
        table("Versions", ("of", "part", "version"), rows),
        table("Plans", ("profile", "plan id"), [(name, plan or "unknown") for name, plan in plans.items()]),
    )


def reproduce_section(
    receipts: Sequence[Receipt], last: Sequence[str], more: Code | None = None
) -> Section | None:
    """Return the commands that made the receipts, as they were typed, and those that made the report."""
    lines: list[str] = []
    for receipt in receipts:
        typed = command_of(receipt)
        if typed and typed not in lines:
            lines.append(typed)
    return section(
        "How to reproduce",
        Paragraph(
            "As typed on the measuring machine; file names are that machine's. `deploy-kit plan` prints the "
            "same plan id for the same configuration."
        ),
        Code(tuple(lines)) if lines else None,
        more,
        Paragraph("This decision and this report from the receipts:"),
        Code(tuple(last)),
    )


def receipts_section(receipts: Sequence[Receipt], files: Mapping[str, Path]) -> Section | None:
    """Return the list of receipts; each carries a hash of its content, so that a changed one is noticed."""
    rows = [
        (
            receipt.kind,
            str(receipt.subject.get("profile") or receipt.subject.get("model") or "-"),
            f"{receipt.created_at:%Y-%m-%d %H:%M} UTC",
            receipt.short_id,
            files[receipt.receipt_id].name if receipt.receipt_id in files else "-",
        )
        for receipt in receipts
    ]
    return section(
        "Receipts", table("What the numbers were read from", ("kind", "of", "made", "id", "file"), rows)
    )


def command_of(receipt: Receipt) -> str | None:
    """Return the command that made a receipt, where the receipt has it."""
    arguments = receipt.subject.get("arguments")
    if isinstance(arguments, list) and arguments:
        return "deploy-kit " + shlex.join(str(word) for word in arguments)
    command = receipt.subject.get("command") or receipt.subject.get("by")
    return str(command) if isinstance(command, str) else None


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        texts = [_value(item) for item in value]
        if len(texts) > 1 and len(set(texts)) == 1:
            return f"{len(texts)} x {texts[0]}"
        return "; ".join(texts) or "none"
    return "unknown" if value is None else str(value)
