"""Stand-in (rehearsal only): the CPU operators of SGLang's compiled `sgl_kernel`, in plain PyTorch."""

__version__ = "0.0.0+rehearsal.stand.in"
