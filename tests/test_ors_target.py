"""Where a source lives: addresses, names and keys, from what the user wrote."""

from __future__ import annotations

import os
import pickle

import pytest

from multiors.errors import ConfigError, SourceError
from multiors.ors.source import ORSSource
from multiors.ors.target import Endpoint, is_url, resolve_endpoint

KEY = "key-of-the-user"
PASSWORD = "hunter2"


def resolve(target: str, **options: str | None) -> Endpoint:
    """The endpoint of a source called seta."""
    return resolve_endpoint(target, label="seta", **options)


# -- catalogue names


def test_a_catalogue_name_lives_on_the_platforms_session_host() -> None:
    """A catalogue name goes to the platform's session address, is routed by its name, and needs no prefix."""
    endpoint = resolve("Eigent/SETA", api_key=KEY)

    assert (
        Endpoint(
            "https://sessions.openreward.ai",
            "Eigent/SETA",
            environment=None,
            is_platform=True,
            api_key=KEY,
            api_url="https://api.openreward.ai",
        )
        == endpoint
    )
    assert "/tools" == endpoint.path("/tools")


def test_a_variant_of_a_catalogue_environment_is_its_path_prefix() -> None:
    """The ORS variant, or an `env_name` beside a catalogue name, selects the environment inside the deployment."""
    by_variant = resolve("Eigent/SETA", api_key=KEY, variant="Hard")
    by_env_name = resolve("Eigent/SETA", api_key=KEY, env_name="Hard")

    assert ("Eigent/SETA", "hard") == (by_variant.deployment, by_variant.environment)
    assert "/hard/tools" == by_variant.path("/tools")
    assert by_variant == by_env_name


def test_an_env_name_with_an_owner_replaces_the_catalogue_name() -> None:
    """TRL's `env_name` overrides the name to look up; with an owner it is a whole catalogue name."""
    endpoint = resolve("Eigent/SETA", api_key=KEY, env_name="Eigent/SETA-v2")

    assert ("Eigent/SETA-v2", None) == (endpoint.deployment, endpoint.environment)


@pytest.mark.parametrize(
    "target",
    [
        "SETA",
        "/SETA",
        "Eigent/",
        "a/b/c",
        " a/b",
        "a/b ",
        "localhost:8000",
        "localhost:8000/sorting",
        "http:/host",
        "a b/c",
    ],
)
def test_what_is_neither_a_url_nor_a_catalogue_name_is_refused(target: str) -> None:
    """A target without "://" is exactly owner/name; everything else is an error that shows both forms."""
    with pytest.raises(ConfigError, match=r"source 'seta': target .* Write 'owner/name' .* or 'http://host:port'"):
        resolve(target, api_key=KEY)


def test_a_catalogue_name_without_a_key_is_an_error() -> None:
    """The platform serves nothing without a key, so its absence is said before any request."""
    with pytest.raises(
        SourceError, match=r"source 'seta': 'Eigent/SETA' .* Pass api_key=\.\.\. or set OPENREWARD_API_KEY\."
    ):
        resolve("Eigent/SETA")


# -- the documented variables


def test_variables_are_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the environment when a source is first used, not when it was constructed."""
    source = ORSSource("Eigent/SETA")
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("OPENREWARD_URL", "https://ors.example.org/")
    (first,) = source._resolve()
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "http://127.0.0.1:4000")
    (second,) = source._resolve()

    assert ("https://sessions.ors.example.org", KEY) == (first.session_url, first.api_key)
    assert "http://127.0.0.1:4000" == second.session_url


def test_arguments_are_stronger_than_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source's own key and session address win over the variables, which are left as they are."""
    monkeypatch.setenv("OPENREWARD_API_KEY", "key-of-the-environment")
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "http://127.0.0.1:4000")
    before = dict(os.environ)
    endpoint = resolve("Eigent/SETA", api_key=KEY, session_url="http://127.0.0.1:5000/")

    assert ("http://127.0.0.1:5000", KEY) == (endpoint.session_url, endpoint.api_key)
    assert before == dict(os.environ)


def test_no_variable_moves_a_url_or_gives_it_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL is one server, taken as written; the platform's key and addresses are not for it."""
    for name in ("OPENREWARD_URL", "OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:4000")
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    server = resolve("http://127.0.0.1:8001")
    platform = resolve("https://ors.example.org", env_name="owner/name")

    assert ("http://127.0.0.1:8001", None) == (server.session_url, server.api_key)
    assert ("https://sessions.ors.example.org", None) == (platform.session_url, platform.api_key)


def test_a_malformed_variable_is_an_error_of_the_source_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is checked like an argument."""
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "sessions.example.org")

    with pytest.raises(ConfigError, match=r"source 'seta': 'sessions\.example\.org' is not a URL of a server"):
        resolve("Eigent/SETA", api_key=KEY)


# -- URLs


@pytest.mark.parametrize(
    ("url", "session_url"),
    [
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("http://127.0.0.1:8001/", "http://127.0.0.1:8001"),
        ("http://localhost:8001//", "http://localhost:8001"),
        (" http://localhost ", "http://localhost"),
        ("HTTPS://you-seta.hf.space", "https://you-seta.hf.space"),
        ("http://[::1]:8001/", "http://[::1]:8001"),
    ],
)
def test_a_url_is_one_server(url: str, session_url: str) -> None:
    """A URL's host and port are the session address; a trailing slash is not part of it."""
    endpoint = resolve(url, env_name="Sorting")

    assert Endpoint(session_url, "Sorting", environment="sorting", is_platform=False) == endpoint


def test_the_api_of_a_platform_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a platform's session address was given, its key goes to no other address that nobody named."""
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "https://s.example.org")
    unnamed = resolve("lab/echo", api_key=KEY)
    monkeypatch.setenv("OPENREWARD_API_URL", "https://a.example.org/")
    named = resolve("lab/echo", api_key=KEY)
    by_url = resolve("https://ors.example.org", env_name="lab/echo", session_url="https://s.example.org")

    assert [None, "https://a.example.org", None] == [endpoint.api_url for endpoint in (unnamed, named, by_url)]


def test_ports_tell_servers_apart() -> None:
    """Two sources on one host and two ports have two session addresses."""
    ports = [resolve(f"http://127.0.0.1:{port}").session_url for port in (8001, 8002)]

    assert ["http://127.0.0.1:8001", "http://127.0.0.1:8002"] == ports


def test_a_url_whose_env_name_has_an_owner_is_a_platform_with_split_hosts() -> None:
    """Such a platform keeps its sessions on a host of their own, by rule or as `session_url` says."""
    by_rule = resolve("https://ors.example.org:8443", env_name="owner/Name", variant="Hard", api_key=KEY)
    as_said = resolve("https://ors.example.org", env_name="owner/Name", session_url="https://s.example.org")

    assert (
        Endpoint(
            "https://sessions.ors.example.org:8443",
            "owner/Name",
            environment="hard",
            is_platform=True,
            api_key=KEY,
            api_url="https://api.ors.example.org:8443",
        )
        == by_rule
    )
    assert ("https://s.example.org", "owner/Name") == (as_said.session_url, as_said.deployment)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http:///tools",
        "http://host:port",
        "http://host:0",
        "http://host:99999",
        "http://[::1",
        "://",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    """A URL has the scheme http or https, a host, and a port that exists."""
    with pytest.raises(ConfigError, match=r"source 'seta': .* is not a URL of a server\. Write 'http://host:port'"):
        resolve(url)


@pytest.mark.parametrize("rest", ["/ors", "/ors/", "/a/b", "?x=1", "/#top"])
def test_a_url_with_more_than_a_host_is_refused_with_the_reason(rest: str) -> None:
    """Requests start at the root of a host, so a path, query or fragment would be lost: an error says so."""
    with pytest.raises(
        ConfigError,
        match=r"has a path, query or fragment.* Pass 'http://host:8001' and name the environment with env_name",
    ):
        resolve(f"http://host:8001{rest}")


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{PASSWORD}@host:8001",
        f"http://{PASSWORD}@host:8001",
        f"http://user:{PASSWORD}@host:port",
        f"http://user:{PASSWORD}@host/path",
        f"http://host:8001?api_key={PASSWORD}",
        f"http://host:8001/#{PASSWORD}",
        f"http://user:{PASSWORD}@[::1",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    """Neither the error nor the representation of the source repeats a password or a key that a URL carries."""
    with pytest.raises(ConfigError, match=r"^source ") as at_construction:
        ORSSource(url)._resolve()
    with pytest.raises(ConfigError, match=r"^source 'seta': ") as resolved:
        resolve(url)

    assert PASSWORD not in str(at_construction.value)
    assert PASSWORD not in str(resolved.value)


def test_what_is_a_url_is_decided_as_trl_does() -> None:
    """A target is a URL if and only if it contains "://"."""
    assert is_url("http://host")
    assert not is_url("owner/name")
    assert not is_url("localhost:8000")


# -- keys


def test_a_key_is_in_no_text() -> None:
    """A source's key travels with its endpoint, and is in no representation of either."""
    source = ORSSource("http://127.0.0.1:8001", api_key=KEY, secrets={"HF_TOKEN": PASSWORD})
    (endpoint,) = source._resolve()
    shown = " ".join(f"{each!r} {each}" for each in (source, source.named("seta"), endpoint))

    assert KEY == endpoint.api_key
    assert KEY not in shown
    assert PASSWORD not in shown


def test_an_endpoint_pickles_with_its_key() -> None:
    """A spawned worker talks to the same address with the same key."""
    endpoint = resolve("Eigent/SETA", api_key=KEY)

    assert endpoint == pickle.loads(pickle.dumps(endpoint))
    assert KEY == pickle.loads(pickle.dumps(endpoint)).api_key


def test_a_session_address_beside_a_servers_url_is_refused() -> None:
    """It would silently replace the server; only a platform has one."""
    with pytest.raises(ConfigError, match=r"session_url='http://127\.0\.0\.1:2' would replace the server"):
        resolve("http://127.0.0.1:1", session_url="http://127.0.0.1:2")
