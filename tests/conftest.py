"""For all tests: property tests count examples, not seconds, so that a busy machine fails none."""

from __future__ import annotations

import os

from hypothesis import settings

# The unit tests end in under 30 s; KIT_EXAMPLES=1000 looks longer.
settings.register_profile("kit", deadline=None, max_examples=int(os.environ.get("KIT_EXAMPLES", "40")))
settings.load_profile("kit")
