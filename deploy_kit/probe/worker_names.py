"""Names shared with the worker, which itself imports nothing of this package."""

FAULT_KINDS = ("hang", "crash", "raise", "wrong", "wrong-in-graph", "stale", "late", "no-memory")
STEPS = ("start", "ready", "prepare", "join", "check", "capture", "replay", "measure", "leave")
