"""What Ansible's provisioning decides on the machine that runs it: inputs, findings, host file, weights. Pure
but for I/O in `__main__`."""
