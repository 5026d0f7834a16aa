"""Running an engine for a plan: child process, readiness, state, exit."""
