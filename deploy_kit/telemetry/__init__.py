"""The plug-in that runs inside SGLang's scheduler and measures each forward and each verify.

Standard library only, plus prometheus_client when the scheduler has started: it is imported into SGLang's
own processes.
"""
