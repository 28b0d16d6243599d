"""Room in engines' KV caches: for open requests, and for prefixes whose sessions are about to go on."""

from pointsman_scheduler.domain.cache_room.fleet_room import FleetRoom
from pointsman_scheduler.domain.cache_room.policy import CacheRoomObserver, CacheRoomPolicy, new_observer
from pointsman_scheduler.domain.cache_room.room import CacheRoom

__all__ = ["CacheRoom", "CacheRoomObserver", "CacheRoomPolicy", "FleetRoom", "new_observer"]
