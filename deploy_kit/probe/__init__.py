"""Measure all-reduce, and accept fused kernels, the way serving uses them: before any model is loaded."""
