"""Which URLs webhooks may have, and which addresses their hosts may resolve to."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from settings.errors.mistakes import SettingError
from settings.webhooks import WebhookSettings
from webhooks.addresses import AddressRules, ForbiddenUrl, Target, check_addresses, check_url

STRICT = AddressRules()
NAME = Target("https", "receiver.example", 443, in_allowed_networks=False)

FORBIDDEN = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1"),
    *("168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1"),
    *("192.31.196.1", "192.52.193.1", "192.175.48.1", "2620:4f:8000::1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::8.8.8.8"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::ffff:0:169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::8.8.8.8", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:0:7f00:1::"),
    *("100::1", "2001::1", "2001:0:808:808::f5ff:fffe", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:808:808::1", "3fff::1", "4000::1", "5f00::1"),
    *("fc00::1", "fd00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255"),
    *(
        "128.0.0.0",
        "168.63.129.15",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
    ),
    *("192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "203.0.114.0", "223.255.255.255"),
    *("2001:200::1", "2001:4860:4860::8888", "2003::1", "2606:4700:4700::1111", "2a00:1450::1"),
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_special_addresses_are_forbidden(address: str) -> None:
    with pytest.raises(ForbiddenUrl):
        check_addresses(NAME, [address], STRICT)
    literal = address.partition("%")[0]
    with pytest.raises(ForbiddenUrl):
        check_url(f"https://{f'[{literal}]' if ':' in literal else literal}/", STRICT)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert [str(found) for found in check_addresses(NAME, [address], STRICT)] == [address]
    assert check_url(f"https://{f'[{address}]' if ':' in address else address}/", STRICT).host == address


@pytest.mark.parametrize("others", [["8.8.8.8", "10.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["2606:4700::1", "::1"]])
def test_one_forbidden_address_forbids_all(others: list[str]) -> None:
    with pytest.raises(ForbiddenUrl) as caught:
        check_addresses(NAME, others, STRICT)
    assert not any(address in str(caught.value) for address in others), "an inner network is not told of"


def test_duplicate_addresses_are_removed_and_the_resolvers_order_is_kept() -> None:
    found = check_addresses(NAME, ["8.8.8.8", "1.1.1.1", "8.8.8.8"], STRICT)
    assert [str(address) for address in found] == ["8.8.8.8", "1.1.1.1"]


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://receiver.example", "receiver.example", 443),
        ("https://receiver.example/hooks/1?a=b%20c&d=/e@f:g", "receiver.example", 443),
        ("HTTPS://Receiver.EXAMPLE:443/", "receiver.example", 443),
        ("https://xn--grn-hoa.example/gr%C3%BCn", "xn--grn-hoa.example", 443),
        ("https://a_b.c-d.example?x", "a_b.c-d.example", 443),
        ("https://8.8.8.8/", "8.8.8.8", 443),
        ("https://[2606:4700:4700:0::1111]/", "2606:4700:4700::1111", 443),
        ("https://0x7f.example/", "0x7f.example", 443),
        ("https://" + "a" * 63 + ".example/", "a" * 63 + ".example", 443),
        ("https://receiver.example/" + "a" * (2_048 - 25), "receiver.example", 443),
    ],
)
def test_valid_urls_are_accepted(url: str, host: str, port: int) -> None:
    assert check_url(url, STRICT) == Target("https", host, port, in_allowed_networks=False)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "receiver.example",
            "//receiver.example/",
            "https:",
            "https:/receiver.example/",
            "https:receiver.example",
        ),
        *("http://receiver.example/", "ftp://receiver.example/", "file:///etc/passwd", "gopher://receiver.example/"),
        *("javascript://receiver.example/", "https//receiver.example/", "https://", "https:///path", "https://?query"),
        *("https://user@receiver.example/", "https://user:pass@receiver.example/", "https://@receiver.example/"),
        *("https://receiver.example@10.0.0.1/", "https://receiver.example:443@10.0.0.1/"),
        *("https://receiver.example/#fragment", "https://receiver.example#@10.0.0.1/", "https://receiver.example\\@x/"),
        *("https://receiver.example:/", "https://receiver.example:0/", "https://receiver.example:22/"),
        *("https://receiver.example:80/", "https://receiver.example:8443/", "https://receiver.example:0443/"),
        *("https://receiver.example:443:443/", "https://receiver.example:+443/", "https://receiver.example:443a/"),
        *("https://receiver.example:65979/", "https://receiver.example:٤٤٣/", "https://:443/"),
        *("https://2130706433/", "https://017700000001/", "https://0x7f000001/", "https://0x/", "https://127.1/"),
        *(
            "https://127.0.1/",
            "https://0177.0.0.1/",
            "https://0x7f.0.0.1/",
            "https://127.0.0.0x1/",
            "https://127.0.0.01/",
        ),
        *("https://1.2.3.4.5/", "https://256.1.1.1/", "https://8.8.8.8./", "https://a.1/", "https://8.8.8.08/"),
        *("https://１２７.0.0.1/", "https://127。0。0。1/", "https://ⓛocalhost/", "https://grün.example/"),
        *("https://receiver.example/grün", "https://receiver.example./", "https://./", "https://.example/"),
        *("https://a..example/", "https://-a.example/", "https://a-.example/", "https://a%2eexample/", "https://%31/"),
        *(
            "https://a!b.example/",
            "https://a,b/",
            "https://a b.example/",
            "https://receiver.example/a b",
            " https://a.b/",
        ),
        *("https://a.b/\n", "https://a.b/\r\nHost: c", "https://a.b\t/", "https://a.b/\0", "https://a.b/\x7f"),
        *(f"https://receiver.example/{odd}" for odd in '"<>^`{|}'),
        *(f"https://receiver.example/?{odd}" for odd in '"<>^`{|}'),
        *("https://[::1/", "https://::1/", "https://[::1]x/", "https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/"),
        *("https://[1.2.3.4]/", "https://[]/", "https://[v1.x]/", "https://[2606:4700::1]:22/", "https://[[::1]]/"),
        *("https://" + "a" * 64 + ".example/", "https://" + ".".join(["a" * 62] * 4) + ".ab/"),
        *("https://receiver.example/\\evil", "https://receiver.example/" + "a" * (2_049 - 25)),
    ],
)
def test_invalid_and_ambiguous_urls_are_refused(url: str) -> None:
    with pytest.raises(ForbiddenUrl):
        check_url(url, STRICT)


def test_the_error_says_what_is_wrong_with_a_url() -> None:
    for url, message in {
        "https://user:pass@receiver.example/": "names a user",
        "https://receiver.example/#fragment": "has a fragment",
        "https://receiver.example:22/": "don't go to port 22",
        "https://127.1/": "four decimal numbers",
    }.items():
        with pytest.raises(ForbiddenUrl, match=message):
            check_url(url, STRICT)


ODD = st.sampled_from(
    ["@", "#", "\\", "%", " ", "\t", "é", "。", "//", "[", "]", "xn--", "0x7f", "user@", ":443", ".."]
)
NEARLY = st.from_regex(
    r"https?://([a-z0-9_.-]{1,12}|\[[0-9a-f:.]{2,12}\]|([0-9]{1,3}\.){3}[0-9]{1,3})(:[0-9]{1,5})?([/?][!-~]{0,12})?",
    fullmatch=True,
)


def _in_one_form(host: str) -> str:
    """An IPv6 address has many."""
    return str(ip_address(host)) if ":" in host else host


@given(url=NEARLY, odd=st.one_of(st.just(""), ODD), at=st.integers(0, 40))
def test_an_accepted_url_has_the_same_host_for_the_check_and_for_the_request(url: str, odd: str, at: int) -> None:
    """The URL that was checked, and the one that the request is made of, lead to the same place."""
    url = url[:at] + odd + url[at:]
    try:
        target = check_url(url, AddressRules(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0"))))
    except ForbiddenUrl:
        return
    read = httpx2.URL(url)
    assert (read.scheme, _in_one_form(read.raw_host.decode())) == (target.scheme, target.host)
    assert (read.port or {"http": 80, "https": 443}[read.scheme]) == target.port
    assert not read.userinfo


class TestAllowedNetworks:
    """A development setting opens named networks: at any port, without TLS, and no others."""

    RULES = AddressRules(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128"), ip_network("64:ff9b::/96")))

    @pytest.mark.parametrize(
        ("url", "opened"),
        [
            ("https://localhost/", False),
            ("http://localhost/", True),
            ("http://localhost:443/", True),
            ("https://localhost:9000/", True),
            ("http://127.0.0.1:9000/", True),
            ("http://[::1]:9000/", True),
            ("https://127.8.9.1/", False),
            ("https://8.8.8.8/", False),
        ],
    )
    def test_urls_in_allowed_networks_are_accepted(self, url: str, opened: bool) -> None:
        assert check_url(url, self.RULES).in_allowed_networks is opened

    @pytest.mark.parametrize(
        "url",
        [
            *("https://10.0.0.1/", "http://8.8.8.8/", "https://8.8.8.8:8443/", "http://10.0.0.1:9000/"),
            *(
                "ftp://127.0.0.1/",
                "http://127.0.0.1:65536/",
                "http://user@127.0.0.1/",
                "http://127.1/",
                "http://0/",
                "https://[::2]/",
            ),
            *("https://[::ffff:127.0.0.1]/", "https://[64:ff9b::a9fe:a9fe]/", "http://[64:ff9b::8.8.8.8]/"),
        ],
    )
    def test_urls_in_other_private_networks_are_refused(self, url: str) -> None:
        with pytest.raises(ForbiddenUrl):
            check_url(url, self.RULES)

    def test_a_name_without_tls_may_resolve_only_into_allowed_networks(self) -> None:
        target = check_url("http://receiver.example/", self.RULES)
        assert [str(found) for found in check_addresses(target, ["127.0.0.1"], self.RULES)] == ["127.0.0.1"]
        for address in ("8.8.8.8", "10.0.0.1"):
            with pytest.raises(ForbiddenUrl):
                check_addresses(target, [address, "127.0.0.1"], self.RULES)

    def test_the_ipv4_address_behind_nat64_is_checked_too(self) -> None:
        """A network that has IPv6 alone reaches IPv4 receivers through its NAT64, if its operator opens that."""
        target = check_url("https://receiver.example/", self.RULES)
        check_addresses(target, ["64:ff9b::8.8.8.8"], self.RULES)
        with pytest.raises(ForbiddenUrl):
            check_addresses(target, ["64:ff9b::10.0.0.1"], self.RULES)

    @pytest.mark.parametrize(
        ("network", "address", "opened"),
        [
            ("2002::/16", "2002:808:808::1", True),
            ("2002::/16", "2002:7f00:1::1", False),
            ("2001::/32", "2001:0:808:808::f5ff:fffe", False),
            ("2001::/32", "2001:0:808:808::f7f7:f7f7", True),
            ("2001::/32", "2001:0:a00:1::f7f7:f7f7", False),
            ("::/0", "::ffff:10.0.0.1", False),
        ],
    )
    def test_the_ipv4_address_in_a_tunnel_is_checked_too(self, network: str, address: str, opened: bool) -> None:
        rules = AddressRules(allowed=(ip_network(network),))
        if opened:
            check_addresses(NAME, [address], rules)
        else:
            with pytest.raises(ForbiddenUrl):
                check_addresses(NAME, [address], rules)


def test_address_rules_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AddressRules.from_settings(WebhookSettings()) == STRICT
    monkeypatch.setenv("SCORELINE_WEBHOOK_PORTS", "443,8443")
    monkeypatch.setenv("SCORELINE_WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8, fd00::/8")
    rules = AddressRules.from_settings(WebhookSettings())
    assert rules == AddressRules(frozenset({443, 8443}), (ip_network("127.0.0.0/8"), ip_network("fd00::/8")))
    assert check_url("https://receiver.example:8443/", rules).port == 8443


@pytest.mark.parametrize("networks", ["127.0.0.1/8", "localhost", "10.0.0.0/33", "*"])
def test_an_invalid_network_in_the_settings_is_refused(networks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORELINE_WEBHOOK_ALLOWED_NETWORKS", networks)
    with pytest.raises(SettingError, match="SCORELINE_WEBHOOK_ALLOWED_NETWORKS"):
        WebhookSettings()
