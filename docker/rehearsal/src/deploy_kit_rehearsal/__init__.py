"""Rehearsal on a machine without GPUs: SGLang plug-in and tiny models with known acceptance."""

__version__ = "0.1.0"
