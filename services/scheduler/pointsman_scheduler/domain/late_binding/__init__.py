"""Late binding: a request goes to an engine when the engine is about to take it up, not when the request comes."""

from pointsman_scheduler.domain.late_binding.background_queue import BackgroundView
from pointsman_scheduler.domain.late_binding.binder import Binder
from pointsman_scheduler.domain.late_binding.peers import TELL_AGAIN_MS
from pointsman_scheduler.domain.late_binding.policy import LateBindingPolicy
from pointsman_scheduler.domain.late_binding.room_queue import NeedsRoom
from pointsman_scheduler.domain.late_binding.unbound import REFUSING, Because, Bound, PeerRequest, Unbound

__all__ = [
    "REFUSING",
    "TELL_AGAIN_MS",
    "BackgroundView",
    "Because",
    "Binder",
    "Bound",
    "LateBindingPolicy",
    "NeedsRoom",
    "PeerRequest",
    "Unbound",
]
