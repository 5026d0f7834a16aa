"""Bringing plans onto machines: images, playbooks, compose."""
