"""Drafters (draft models for speculative decoding): check, compare, remap, predict. Reads never change
anything."""
