"""Chaos runs: the built program under real faults, checked from its files alone (docs/chaos.md)."""
