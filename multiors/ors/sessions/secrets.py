"""The secrets of a source's sessions: where each value comes from, and how it travels.

Decides that a secret goes only where it is asked for: to a source that names it, or whose environment requires it. A
value of the source's own comes before one of the mix, and that before an environment variable of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from openreward.api.sandboxes.secrets import WELL_KNOWN_SECRETS

from multiors.errors import ConfigError, SourceError
from multiors.ors.target import Endpoint

__all__ = ["GivenSecrets", "Secrets", "check_secrets", "find_secrets", "pair_secrets", "secret_values"]

Secrets = Mapping[str, str | tuple[str, list[str]]]
"""Values by name; with the hosts that a value may be sent to where the platform must be told."""

GivenSecrets = Mapping[str, str | tuple[str, list[str]] | None]
"""As the user gives them. None: the value is the mix's, or that of the environment variable."""


def find_secrets(own: GivenSecrets | None, shared: Secrets | None, required: Sequence[str], *, label: str) -> Secrets:
    """The value of each secret that a source names or that its environment requires.

    Args:
        own: The source's.
        shared: The mix's.
        required: Names that the environment requires.
        label: The source's name, for messages.

    Raises:
        SourceError: There is no value for some; all of them are named.
    """
    found: dict[str, str | tuple[str, list[str]]] = {}
    missing = []

    for name in dict.fromkeys([*(own or {}), *required]):
        candidates = ((own or {}).get(name), (shared or {}).get(name), os.environ.get(name))
        value = next((value for value in candidates if value), None)

        if value is None:
            missing.append(name)
        else:
            found[name] = value

    if missing:
        who = "its environment requires" if set(missing) <= set(required) else "it names"
        raise SourceError(
            f"source {label!r}: {who} the secrets {missing}, and there is no value for them. Pass "
            f"secrets={{{missing[0]!r}: ...}} to the source or the mix, or set environment variables of these names."
        )

    return found


def pair_secrets(secrets: Secrets | None, endpoint: Endpoint, label: str) -> Secrets | None:
    """Secrets as the SDK takes them: a name it does not know needs the hosts that the secret may go to.

    A server that is not a platform hands secrets to the environment itself and restricts no hosts.

    Raises:
        ConfigError: A value is neither text nor a pair of text and hosts.
        SourceError: The platform must be told the hosts of a secret.
    """
    if not secrets:
        return None

    check_secrets(secrets, f"source {label!r}")
    paired: dict[str, str | tuple[str, list[str]]] = {}

    for name, secret in secrets.items():
        match secret:
            case str() if name in WELL_KNOWN_SECRETS:
                paired[name] = secret
            case str() if not endpoint.is_platform:
                paired[name] = (secret, [])
            case str():
                raise SourceError(
                    f"source {label!r}: the platform must be told which hosts the secret {name!r} may go to. "
                    f"Pass it as (value, ['host', ...])."
                )
            case (value, hosts):
                paired[name] = (value, [str(host) for host in hosts])

    return paired


def check_secrets(secrets: object, holder: str) -> None:
    """Check what a user gave; a value never stands in the message.

    Args:
        secrets: Anything.
        holder: Whose they are, as messages name it: "source 'sort'", "the mix".

    Raises:
        ConfigError: It is no mapping of names to text, pairs or None.
    """
    if not isinstance(secrets, Mapping) or not all(isinstance(name, str) for name in secrets):
        raise ConfigError(f"{holder}: secrets are no mapping of names to values. Pass {{'NAME': 'value', ...}}.")

    for name, secret in secrets.items():
        match secret:
            case None | str() | [str(), [*_]]:
                pass
            case _:
                raise ConfigError(
                    f"{holder}: the secret {name!r} is neither text nor a pair. Pass its value, or "
                    f"(value, ['host', ...])."
                )


def secret_values(secrets: GivenSecrets | None) -> list[str]:
    """The values that must not be shown."""
    given = (value for value in (secrets or {}).values() if value is not None)
    return [value if isinstance(value, str) else value[0] for value in given]
