"""The session: what a training loop calls to be one island of a run.

``Island`` is for one's own loop, ``attach`` for a trainer that owns the loop. Both wait and print; all else is in
``Engine``, which performs on tensors, link and storage what ``Core`` decides.
"""

from isthmus.session.attachment import Attachment, attach
from isthmus.session.core import Core
from isthmus.session.cutting import Cut, cut_model
from isthmus.session.effects import Effects
from isthmus.session.engine import Engine
from isthmus.session.island import Island
from isthmus.session.leasing import Lease, hold_lease
from isthmus.session.memory import Memory, Plan
from isthmus.session.site import Site, open_tcp_link, plan_of, run_started
from isthmus.session.trainee import Training

__all__ = [
    "Attachment",
    "Core",
    "Cut",
    "Effects",
    "Engine",
    "Island",
    "Lease",
    "Memory",
    "Plan",
    "Site",
    "Training",
    "attach",
    "cut_model",
    "hold_lease",
    "open_tcp_link",
    "plan_of",
    "run_started",
]
