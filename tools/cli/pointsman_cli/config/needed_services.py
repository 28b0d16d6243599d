"""The services without which a configuration's requests fail. Pure."""

from collections.abc import Collection, Iterator

from pointsman_contracts.services import ITINERARY, STAGES
from pointsman_core.config import Config, active


def missing_services(config: Config, heard: Collection[str]) -> Iterator[tuple[str, str]]:
    """What each service that isn't among those `heard` would be needed for, and the remedy."""
    for service, profiles in sorted(_needed(config).items()):
        if service not in heard:
            used = (
                f"the profile{'s' if len(profiles) > 1 else ''} {', '.join(profiles)}" if profiles else "every request"
            )
            yield (
                f"no {service} is heard, and {used} needs one",
                f"Start one: pointsman-{service}. `pointsman up --config FILE` starts those that FILE names.",
            )


def _needed(config: Config) -> dict[str, list[str]]:
    """Service → profiles that need it; no profile when every request does."""
    always = (*(name for name in STAGES if name not in ITINERARY), "metrics-collector")
    needed: dict[str, list[str]] = {name: [] for name in always}
    for name, profile in config.profiles.items():
        for use in active(profile.request):
            if use.service in config.stages or use.shadow:
                continue
            if (use.on_error or STAGES[use.service].on_error) == "deny":
                profiles = needed.setdefault(use.service, [])
                if name not in profiles:
                    profiles.append(name)
    return needed
