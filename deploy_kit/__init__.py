"""Deploy Kimi-class models with SGLang on PCIe-only GPU boxes, and know whether speculation pays."""

__version__ = "0.1.0"
