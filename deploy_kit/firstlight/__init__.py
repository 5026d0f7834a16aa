"""First light: what a person with the box runs first, in order, resumable, packed into one file to share."""

from deploy_kit.firstlight.pack import pack
from deploy_kit.firstlight.run import Runner
from deploy_kit.firstlight.settings import Settings, Situation
from deploy_kit.firstlight.steps import Step, steps_of

__all__ = ["Runner", "Settings", "Situation", "Step", "pack", "steps_of"]
