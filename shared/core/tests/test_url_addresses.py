"""Where a configuration may have a process ask."""

import pytest

from pointsman_core.url_addresses import check_url

PUBLIC = [
    "https://id.example/keys",
    "http://93.184.216.34:8080/x",
    "https://[2606:4700::1111]/",
    "https://a-b.example.:8/",
]
HERE = ["http://127.0.0.1:8000/v1", "http://[::1]/v1", "http://localhost:1/", "http://127.9.9.9/"]
PRIVATE = [
    "http://10.0.0.1/", "http://192.168.1.1:80/", "http://172.16.0.1/", "http://100.64.0.1/", "http://[fd00::1]/",
    "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::a00:1]/", "http://[fec0::1]/", "http://keycloak/", "http://a.b.svc/",
    "http://a.b.svc.cluster.local/", "http://printer.local/", "http://x.internal/", "http://167772161/", "http://0xa000001/",
    "http://10.1/",
]  # fmt: skip
NEVER = [
    "http://169.254.169.254/latest/meta-data", "http://169.254.1.1/", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::]/", "http://2852039166/", "http://0xA9FEA9FE/",
    "http://0251.0376.0251.0376/", "http://169.254.169.254./", "http://0xa9.254.0xA9FE/",
    "http://169.254.43518/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
    "http://168.63.129.16/", "http://metadata.google.internal/", "http://metadata.google.internal./", "http://metadata/",
    "http://0.0.0.0/", "http://0/", "http://[::]/", "http://224.0.0.1/", "http://[ff02::1]/",
    "http://\uff11\uff16\uff19.254.169.254/", "http://169%2e254.169.254/", "http://[fe80::1%25eth0]/",
]  # fmt: skip


@pytest.mark.parametrize("url", [*PUBLIC, *HERE])
def test_a_public_address_and_one_of_this_machine_may_be_asked(url: str) -> None:
    check_url(url, private=False)


@pytest.mark.parametrize("url", PRIVATE)
def test_a_private_address_may_be_asked_where_the_settings_say_so(url: str) -> None:
    check_url(url, private=True)
    with pytest.raises(ValueError, match="`private: true` allows it"):
        check_url(url, private=False)


@pytest.mark.parametrize("url", NEVER)
@pytest.mark.parametrize("private", [True, False])
def test_link_local_addresses_and_metadata_services_are_never_asked_however_they_are_written(
    url: str, private: bool
) -> None:
    with pytest.raises(ValueError, match=r"never asked|no host|ASCII"):
        check_url(url, private=private)
