"""Rules: flags and what contradicts them, then captures that failed for no named reason."""

# ruff: noqa: E501  (patterns and their explanations read better unbroken)
from __future__ import annotations

from deploy_kit.startup.rule import Rule, rule
from deploy_kit.startup.rule_choice import ARGUMENT_FRAMES, CAPTURE_FRAMES

RULES: tuple[Rule, ...] = (
    rule(
        "flag",
        r"unrecognized arguments?: (?P<flag>[^\n]+)|argument (?P<flag2>\S+): (?:invalid|expected|not allowed)[^\n]*"
        r"|ambiguous option: (?P<flag3>[^\n]+)|the following arguments are required: (?P<flag4>[^\n]+)",
        "SGLang does not take this flag: {first}",
    ),
    rule(
        "flag",
        r"User-specified context_length|is greater than the derived context|must be divisible by|is not divisible by"
        r"|(?:is|are) (?:not|only) (?:compatible|supported|allowed) (?:with|when|together)|cannot be (?:used|enabled|set) (?:with|together|when|at)"
        r"|incompatible with|mutually exclusive|must be (?:set|specified|greater|positive|less|one of|between|equal)|should be (?:set|greater|less)"
        r"|has been (?:removed|renamed|deprecated and removed)|no longer supported|Unknown (?:attention|sampling|moe|backend)|Invalid (?:attention|backend|value|choice)"
        r"|is not equal to (?:tensor|pipeline|data)\w*_size|Unknown (?:dtype|schedule_policy|CacheA\w+)|Invalid load balance"
        r"|requires? --|(?:--[\w-]+) (?:requires|must|cannot|is not)",
        "a flag contradicts another or the model: {first}",
    ),
    rule(
        "flag",
        r"^(?:ValueError|AssertionError|NotImplementedError)\b.{0,400}(?:only supports?|(?:does|do) not support|(?:is|are) not supported"
        r"|requires?|only (?:allowed|valid|works) )",
        "the chosen backend does not take these settings: {first}",
        where=r"layers/(?:attention|moe)/\S+:(?:__init__|create_\w+|_validate\w*|_check\w*)\s*\Z",
    ),
    rule(
        "flag",
        r".",
        "the arguments were refused: {first}",
        where=ARGUMENT_FRAMES.pattern
        + r"|server_args\.py:(?:__post_init__|check_\w+|resolve\w*|_handle\w+|from_cli\w*)",
    ),
    rule(
        "capture-failed",
        r"Capture .{0,30}failed|during (?:graph )?capture|when stream is capturing|stream capture|cudaStreamCapture"
        r"|CUDAGraph|cudaErrorStreamCapture",
        "graph capture failed, not for memory: {first}",
    ),
    rule(
        "capture-failed", r".", "graph capture failed, not for memory: {first}", where=CAPTURE_FRAMES.pattern
    ),
)
