"""Resolving stack x model x host x profile x levers to a plan: pure, deterministic, printable."""
