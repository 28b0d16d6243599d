"""The providers of each configuration revision."""

from pointsman_core.config import load
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_edge.deciding.policy import EdgePolicy, compile_policy
from pointsman_edge.sending.provider_book import ProviderBook


def revision(number: int, host: str) -> EdgePolicy:
    provider = {"kind": "openai", "base_url": f"https://{host}/v1"}
    return compile_policy(load({"providers": {"far": provider}}), number)


def test_a_request_keeps_the_provider_of_its_revision_and_a_number_that_comes_again_is_another() -> None:
    book = ProviderBook(Credentials())
    old, new, again = revision(1, "old.example"), revision(2, "new.example"), revision(1, "again.example")
    urls = [
        found.url for policy in (old, new, old, again, new) if (found := book.find_provider(policy, "far")) is not None
    ]
    assert urls == [f"https://{name}.example/v1" for name in ("old", "new", "old", "again", "new")]
    assert book.find_provider(new, "near") is None
