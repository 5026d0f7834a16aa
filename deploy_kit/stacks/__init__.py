"""Pinned stacks: whether what is generated from a stack still agrees with it; what differs between two."""
