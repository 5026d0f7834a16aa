"""Reads: one module a source, each a pure function from a command's text to facts."""
