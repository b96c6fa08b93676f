"""Chaos on the real thing: the built program under real faults, judged from files alone (docs/chaos.md)."""
