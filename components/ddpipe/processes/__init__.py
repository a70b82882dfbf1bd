"""Processes of this machine, without torch: starting, stopping, signals, CPUs."""
