"""Following an engine's start from its log, process and endpoints: phase, progress, cause of an end."""
