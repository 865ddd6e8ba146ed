"""Drills: real islands on this machine are killed, stopped and cut off, and what that costs is measured."""

from isthmus.chaos.drill import DrillPlan, run_drill

__all__ = ["DrillPlan", "run_drill"]
