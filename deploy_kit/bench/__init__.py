"""Measuring a running server: load, samples, the engine's counters, a receipt."""
