"""Many islands in one process on a virtual clock: the same session on memory links, no second implementation."""

from isthmus.lab.world import Resident, World, WorldEvent

__all__ = ["Resident", "World", "WorldEvent"]
