"""The parts of run.py: the shop, the proxy with its faults, the processes, the scenarios and the judge."""
