"""What a configuration file may hold where it holds something else: words for Pydantic's refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from deploy_kit.errors import nearest_names

ABSOLUTE_PATH = r"^/[^\x00-\x1f]*$"
_PATTERNS = {ABSOLUTE_PATH: "an absolute path, such as /models/kimi-k2.5"}
_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list [ … ]",
    "tuple_type": "a list [ … ]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_UNION_MEMBERS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


class ContradictionError(ValueError):
    """A broken rule that Pydantic's own limits do not tell: the key to correct in its table ("" for the
    value itself), what is wrong, what was found, and what is allowed."""

    def __init__(self, key: str, message: str, *, found: object, allowed: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key, self.message, self.found, self.allowed = key, message, found, allowed


def first_refusal(
    kind: type[BaseModel], error: ValidationError
) -> tuple[str, str | None, object, object, int]:
    """Given the table's model and Pydantic's error, return the first problem as (what is wrong, key, what was
    found or None, what is allowed or None, number of further problems).

    A value that may be of several types is one problem, though Pydantic counts one for each type.
    """
    problems = _without_union_members(error)
    # A key written wrong is missing too: the unknown key says what happened.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"]]
    key = ".".join(location) or None
    message, found, allowed = str(first["msg"]), first.get("input"), first.get("allowed")
    type_ = first["type"]
    if type_ == "extra_forbidden":
        known = keys_at(kind, location[:-1])
        message, found, allowed = "unknown key", location[-1], nearest_names(location[-1], known) or known
    elif type_ == "missing":
        message, found = "missing key", "nothing"
        allowed = f"{_type_at(kind, location) or 'a value'}: this key has no default"
    elif type_ == "value_error":
        ours = first.get("ctx", {}).get("error")
        if isinstance(ours, ContradictionError):
            key = ".".join(part for part in (key, ours.key) if part)
            message, found, allowed = ours.message, ours.found, ours.allowed
    elif type_ in _TYPES and isinstance(found, str):
        found, allowed = f'"{found}" (text)', _allowed(kind, location, type_, {})
    elif allowed is None:
        allowed = _allowed(kind, location, type_, first.get("ctx", {}))
    return message, key, _shown(found), allowed, len(problems) - 1


def keys_at(kind: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Return the keys that a table inside `kind` may have, as far as the location leads."""
    current: Any = kind
    for part in location:
        fields = getattr(current, "model_fields", {})
        if part in fields:
            current = _inner_model(fields[part].annotation)
        if current is None:
            return []
    return sorted(getattr(current, "model_fields", {}))


def _allowed(
    kind: type[BaseModel], location: Sequence[str], type_: str, context: dict[str, Any]
) -> str | None:
    if type_ in _TYPES:
        limits = _limits_at(kind, location)
        return _TYPES[type_] + (f", {limits}" if limits else "")
    if type_ == "literal_error":
        return str(context.get("expected"))
    if type_ == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return _PATTERNS.get(pattern, f"text that matches {pattern}")
    if type_ in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"):
        return _limits_at(kind, location) or _limit(type_, context)
    if type_ in ("string_too_long", "string_too_short"):
        return _length(context, "character")
    if type_ in ("too_long", "too_short"):
        return _length(context, "entry")
    return None


def _limit(type_: str, context: dict[str, Any]) -> str:
    sign = {
        "greater_than": "above",
        "greater_than_equal": "at least",
        "less_than": "below",
        "less_than_equal": "at most",
        "multiple_of": "a multiple of",
    }[type_]
    return f"{sign} {next(iter(context.values()), 'the limit')}"


def _length(context: dict[str, Any], unit: str) -> str:
    word, number = (
        ("at most", context.get("max_length"))
        if "max_length" in context
        else ("at least", context.get("min_length"))
    )
    many = {"character": "characters", "entry": "entries"}[unit]
    return f"{word} {number} {unit if number == 1 else many}"


def _limits_at(kind: type[BaseModel], location: Sequence[str]) -> str:
    """Return the limits of the number at that place, both of them: "1 to 7", "at least 1", "above 0"."""
    field = _field_at(kind, location)
    limits = {
        name: getattr(item, name)
        for item in getattr(field, "metadata", ())
        for name in ("ge", "gt", "le", "lt")
        if getattr(item, name, None) is not None
    }
    if "ge" in limits and "le" in limits:
        return f"{limits['ge']} to {limits['le']}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{word} {limits[name]}" for name, word in words.items() if name in limits)


def _type_at(kind: type[BaseModel], location: Sequence[str]) -> str | None:
    field = _field_at(kind, location)
    annotation = getattr(field, "annotation", None)
    if annotation in (int, float, str, bool):
        limits = _limits_at(kind, location)
        return _UNION_MEMBERS[annotation.__name__] + (f" ({limits})" if limits else "")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a table with {', '.join(sorted(annotation.model_fields))}"
    return None


def _field_at(kind: type[BaseModel], location: Sequence[str]) -> Any:
    current: Any = kind
    field: Any = None
    for part in location:
        fields = getattr(current, "model_fields", {})
        if part in fields:
            field = fields[part]
            current = _inner_model(field.annotation)
        elif not part.isdigit():  # the key of a table with free keys: its limits are not the field's
            return None
    return field


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None


def _without_union_members(error: ValidationError) -> list[dict[str, Any]]:
    """Return the problems; those of one value against each type of a union as one, all its types allowed."""
    problems: list[dict[str, Any]] = []
    unions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for problem in error.errors(include_url=False):
        *above, last = problem["loc"] or ("",)
        member = _UNION_MEMBERS.get(str(last)) or ("a list" if str(last).startswith("list[") else None)
        if member is None and any(str(part).startswith("list[") for part in above):
            place = next(number for number, part in enumerate(above) if str(part).startswith("list["))
            above, member = list(above[:place]), "a list"
        if member is None or problem["type"] == "extra_forbidden":
            problems.append(dict(problem))
            continue
        known = unions.get(tuple(above))
        if known is None:
            known = {**problem, "loc": tuple(above), "members": [], "type": "union", "msg": ""}
            unions[tuple(above)] = known
            problems.append(known)
        if member not in known["members"]:
            known["members"].append(member)
        known["allowed"] = ", ".join(known["members"][:-1]) + (
            f" or {known['members'][-1]}" if len(known["members"]) > 1 else known["members"][-1]
        )
        known["msg"] = f"Input should be {known['allowed']}"
    return problems


def _shown(found: object) -> object:
    if found is None or isinstance(found, str):
        return found
    text = repr(found)
    return f"{text if len(text) <= 200 else text[:199] + '…'} ({type(found).__name__})"
