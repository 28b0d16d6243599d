"""`timed`: a request processor that calls another one, bounds its time and records it."""

from typing import Final

from pointsman_plugins.routing import ProfileProcessor, RoutedRequest
from pointsman_plugins.stopwatch import Stopwatch, TimedParams

_DONE: Final = True


class TimedProcessor(ProfileProcessor[TimedParams]):
    """The processor that it calls stands in the same list and runs nowhere else. While that is left out, requests pass
    as if it were absent."""

    type_name = "timed"

    def setup(self) -> None:
        self._inner = inner = self.refer(self.params.of, ProfileProcessor)
        self.produces = inner.produces
        self._watch = Stopwatch(self.params)

    def process_request(self, request: RoutedRequest) -> None:
        done = self._watch.call(lambda: self._process(request))
        told = self._watch.words
        said = f"{request.note}; {told}" if done and request.note else told
        request.say(f"{self.params.of}: {said}")

    def _process(self, request: RoutedRequest) -> bool:
        self._inner.process_request(request)
        return _DONE
