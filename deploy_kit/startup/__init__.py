"""Following an engine's start from its log, its process and its endpoints: phase, progress, cause of an end."""
