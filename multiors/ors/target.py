"""Where a source lives: from what the user wrote to the addresses, names and key that its requests carry.

Decides which host a request goes to, which environment on that host it names, and which key (if any) it may carry.
Reads the documented OPENREWARD_* variables at the moment of use and never writes one. Knows no HTTP.

The rules
- A catalogue name ("owner/name") lives on the platform: at `session_url`, else at OPENREWARD_SESSION_URL, else at
  "sessions." before the platform's host (OPENREWARD_URL, by default https://openreward.ai). What the platform knows of
  it is at OPENREWARD_API_URL, or at "api." before the same host.
- A URL is one ORS server, taken as written. With `env_name="owner/name"` it is a platform of its own with split hosts.
- The platform's key (OPENREWARD_API_KEY) goes with catalogue names only. A URL gets a key only if its source has one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from multiors.errors import ConfigError, SourceError

__all__ = ["Endpoint", "is_url", "resolve_endpoint", "show_target"]

_DEFAULT_PLATFORM_URL = "https://openreward.ai"
_CATALOGUE_NAME = re.compile(r"[^\s/:]+/[^\s/:]+")
# Where a URL can carry a password or a key, also one that is no URL to Python.
_SECRET_PARTS = re.compile(r"(?<=://).*@|(?<=[?#]).+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses and names that every request of one source uses."""

    session_url: str
    """Scheme and host that serve tasks, tools and sessions; no path, no trailing slash."""

    deployment: str
    """Value of the X-Deployment header: "owner/name" on a platform, a label elsewhere."""

    environment: str | None
    """Environment asked for: the server's path prefix, in lower case. None: no prefix is needed."""

    is_platform: bool
    """Whether a platform routes by `deployment`, so that the server's own list of environments need not be served."""

    api_key: str | None = field(default=None, repr=False)
    """Sent as X-API-Key to `session_url` and `api_url` only. None: no key is sent."""

    api_url: str | None = None
    """Where the platform tells what it knows of an environment. None: there is no such address, or it is not known."""

    def path(self, suffix: str) -> str:
        """`suffix` under the environment's path prefix."""
        return suffix if self.environment is None else f"/{self.environment}{suffix}"


def is_url(target: str) -> bool:
    """Whether `target` is a URL (contains "://"), as TRL's spec decides it; otherwise it is a catalogue name."""
    return "://" in target


def show_target(target: str) -> str:
    """`target` as messages may show it: without credentials, query and fragment."""
    return _SECRET_PARTS.sub("…", target)


def resolve_endpoint(
    target: str,
    *,
    label: str,
    env_name: str | None = None,
    variant: str | None = None,
    api_key: str | None = None,
    session_url: str | None = None,
) -> Endpoint:
    """Resolve a source's target to the endpoint its requests use.

    Args:
        target: A catalogue name "owner/name", or the URL of an ORS server.
        label: The source's name, for messages.
        env_name: The environment on a server, or "owner/name" on a platform given by URL.
        variant: The ORS variant of a catalogue environment; on a URL the same as `env_name`, and stronger.
        api_key: The source's own key. None: OPENREWARD_API_KEY for catalogue names, no key for URLs.
        session_url: Session address of a platform whose hosts do not follow the "sessions." rule.

    Raises:
        ConfigError: The target or a URL is malformed, or has a path, query or credentials.
        SourceError: A catalogue name, and there is no key.
    """
    if not is_url(target):
        names_deployment = env_name is not None and "/" in env_name
        return _catalogue_endpoint(
            env_name if env_name is not None and names_deployment else target,
            label,
            variant=variant or (None if names_deployment else env_name),
            api_key=api_key,
            session_url=session_url,
        )

    url = _normalize_url(target, label)

    if env_name is not None and "/" in env_name:
        return Endpoint(
            session_url=_normalize_url(session_url, label) if session_url else _with_subdomain(url, "sessions"),
            deployment=env_name,
            environment=_lower(variant),
            is_platform=True,
            api_key=api_key,
            api_url=None if session_url else _with_subdomain(url, "api"),
        )

    if session_url is not None:
        raise ConfigError(
            f"source {label!r}: session_url={show_target(session_url)!r} would replace the server {url!r}, which takes "
            f"sessions itself. Leave one out; a platform of its own also needs env_name='owner/name'."
        )

    return Endpoint(
        session_url=url,
        deployment=env_name or "env",
        environment=_lower(variant or env_name),
        is_platform=False,
        api_key=api_key,
    )


def _catalogue_endpoint(
    name: str, label: str, *, variant: str | None, api_key: str | None, session_url: str | None
) -> Endpoint:
    if not _CATALOGUE_NAME.fullmatch(name):
        raise ConfigError(
            f"source {label!r}: target {name!r} is neither a URL nor a catalogue name. "
            f"Write 'owner/name' for the catalogue or 'http://host:port' for a server."
        )

    key = api_key or os.environ.get("OPENREWARD_API_KEY")

    if not key:
        raise SourceError(
            f"source {label!r}: {name!r} is a catalogue name and no key is set for the platform. "
            f"Pass api_key=... or set OPENREWARD_API_KEY."
        )

    address = session_url or os.environ.get("OPENREWARD_SESSION_URL")
    api_url = os.environ.get("OPENREWARD_API_URL")

    if address is None:
        platform = _normalize_url(os.environ.get("OPENREWARD_URL") or _DEFAULT_PLATFORM_URL, label)
        address = _with_subdomain(platform, "sessions")
        # Of a platform whose session address was given, the other address is not guessed: the key would go there.
        api_url = api_url or _with_subdomain(platform, "api")

    return Endpoint(
        session_url=_normalize_url(address, label),
        deployment=name,
        environment=_lower(variant),
        is_platform=True,
        api_key=key,
        api_url=_normalize_url(api_url, label) if api_url else None,
    )


def _normalize_url(url: str, label: str) -> str:
    """Scheme and host of `url`; everything that would be lost or leak on the way is refused."""
    shown = show_target(url.strip())

    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None

    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"source {label!r}: {shown!r} is not a URL of a server. Write 'http://host:port'.")

    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"source {label!r}: the URL {shown!r} carries credentials, which would reach logs. "
            f"Remove them and pass api_key=..."
        )

    if parts.path.rstrip("/") or parts.query or parts.fragment:
        raise ConfigError(
            f"source {label!r}: the URL {shown!r} has a path, query or fragment; ORS requests start at the root of a "
            f"host, so it would be lost. Pass '{parts.scheme}://{parts.netloc}' and name the environment with "
            f"env_name=..."
        )

    return f"{parts.scheme}://{parts.netloc}"


def _with_subdomain(url: str, subdomain: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{subdomain}.{parts.netloc}"))


def _lower(name: str | None) -> str | None:
    # ORS servers register environments under their lower-case class name (openreward 0.1.167, environments/server.py).
    return None if name is None else name.lower()
