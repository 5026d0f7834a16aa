"""The host doctor: reads a machine, or what was captured of it, and names the faults. It changes nothing."""
