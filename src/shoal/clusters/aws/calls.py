"""Calls of AWS: the only file that imports boto3. Its errors become Shoal's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from shoal.clusters.aws.policy import ASKED, ENDED, MADE
from shoal.errors import ClusterError, ConfigError, CredentialsError, ProvisionError

EXPIRED = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired",
}  # fmt: skip
REFUSED = {
    "AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId",
    "InvalidUserID.NotFound", "SignatureDoesNotMatch", "UnrecognizedClientException",
}  # fmt: skip
DENIED = {
    "AccessDenied", "AccessDeniedException", "AuthorizationError", "Forbidden",
    "UnauthorizedOperation",
}  # fmt: skip
SHORT = {
    "InsufficientInstanceCapacity", "InstanceLimitExceeded", "LimitExceeded",
    "LimitExceededException", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded",
}  # fmt: skip
CLOCK = {"RequestTimeTooSkewed", "RequestInTheFuture", "InvalidSignatureException"}


@final
class CallRefused(ClusterError):
    """AWS answered a call with an error that has no class of its own here.

    Args:
        message: The three sentences.
        code: AWS's code.
        said: AWS's own text.
    """

    def __init__(self, message: str, code: str, said: str) -> None:
        super().__init__(message)
        self.code, self.said = code, said


class Unanswered(ClusterError):
    """AWS cannot be asked at present; that says nothing about what it does."""


@final
class NotLoggedIn(CredentialsError, Unanswered):
    """There are no credentials that AWS accepts.

    Args:
        message: The three sentences.
        has_expired: Whether they were accepted before, and are over.
    """

    def __init__(self, message: str, *, has_expired: bool = False) -> None:
        super().__init__(message)
        self.has_expired = has_expired


@final
class CallDenied(CredentialsError):
    """The credentials may not make a call.

    Args:
        message: The three sentences.
        name: The call, such as "ec2:RunInstances".
        said: AWS's own text.
    """

    def __init__(self, message: str, name: str, said: str) -> None:
        super().__init__(message)
        self.name, self.said = name, said


def denial_of(
    names: Sequence[str], said: str, *, region: str, profile: str | None
) -> CallDenied:
    """Returns the error for calls that are denied.

    Args:
        names: The calls, such as "ec2:RunInstances".
        said: AWS's own text about one of them.
        region: Region that was asked.
        profile: Profile of the credentials.
    """
    actions = [
        action for name in names
        for action in (_actions_of(name) or [name])
    ]  # fmt: skip
    listed = ", ".join(names)
    return CallDenied(
        f"the credentials of {_whose(profile)} may not call {listed} in {region}: "
        f"{said}. Expected a policy with {', '.join(actions)}. Ask for the one that "
        "`shoal cluster policy FILE` prints.",
        listed, said,
    )  # fmt: skip


def _actions_of(name: str) -> list[str]:
    """Returns the IAM actions that a call takes."""
    for call in (*ASKED, *MADE, *ENDED):
        if call.name == name:
            return list(call.allowed_by)
    return []


def _whose(profile: str | None) -> str:
    return f"profile {profile!r}" if profile else "the environment"


def error_of(
    name: str, code: str, said: str, *, region: str, profile: str | None
) -> ClusterError:
    """Returns the error for an answer of AWS.

    Args:
        name: The call, such as "ec2:DescribeImages".
        code: AWS's code.
        said: AWS's own text.
        region: Region that was asked.
        profile: Profile of the credentials.

    Example:
        >>> what = error_of("ec2:RunInstances", "VcpuLimitExceeded", "no",
        ...                 region="a", profile=None)
        >>> str(what)
        'AWS has not enough for ec2:RunInstances in a: no. Expected capacity...'
    """
    whose = _whose(profile)
    where = f"{name} in {region}: {said}"
    if code in EXPIRED:
        return NotLoggedIn(
            f"the credentials of {whose} have expired ({where}). Expected fresh ones. "
            f"{_login(profile)}",
            has_expired=True,
        )
    if code in CLOCK:
        return NotLoggedIn(
            f"AWS refuses the signature of {where}. Expected this machine's clock to "
            "be right, and the secret to belong to the key. Check both."
        )
    if code in REFUSED:
        return NotLoggedIn(
            f"AWS does not know the credentials of {whose} ({where}). Expected a key "
            "and its secret that are valid, and an enabled region. "
            f"{_login(profile)}"
        )
    if code in DENIED:
        return denial_of([name], said, region=region, profile=profile)
    if code in SHORT:
        return ProvisionError(
            f"AWS has not enough for {where}. Expected capacity in the zone, and a "
            "quota of the account. Choose another type or zone, ask for fewer "
            "machines, or ask AWS for a higher quota."
        )
    return CallRefused(
        f"AWS refused {where} ({code}). Expected AWS to accept the call. Correct what "
        "AWS names as the reason, then repeat the command.",
        code, said,
    )  # fmt: skip


def _login(profile: str | None) -> str:
    if profile is None:
        return "Set new AWS_* variables, or name a `profile` in the file."
    return (
        f"Log in again: aws sso login --profile {profile}, or renew its keys with aws "
        f"configure --profile {profile}."
    )


@final
class Calls:
    """Calls with the credentials of a profile, in one region.

    Expired credentials are read anew, once a call: a login in another terminal is
    enough for a wait of an hour.

    Args:
        region: Region.
        profile: Profile; None for the environment's credentials.
    """

    def __init__(self, region: str, profile: str | None) -> None:
        self.region, self.profile = region, profile
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}

    def ask(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> Mapping[str, Any]:
        """Makes a call; returns the answer.

        Args:
            service: Service, as boto3 calls it.
            operation: Operation, such as "DescribeStacks".
            region: Region; default that of all calls.
            **request: Its arguments.

        Raises:
            CredentialsError: The credentials are unknown, expired or too weak.
            ProvisionError: AWS has too little of what is asked for.
            ClusterError: It refuses for another reason, or cannot be reached.
        """
        try:
            return self._ask(service, operation, region, request)
        except NotLoggedIn as error:
            if not error.has_expired:
                raise
            with self._lock:
                self._session = None
                self._clients.clear()
            return self._ask(service, operation, region, request)

    def pages(
        self, service: str, operation: str, part: str, **request: Any
    ) -> Iterator[Any]:
        """Yields the entries of all pages of an answer.

        Args:
            service: Service.
            operation: Operation.
            part: Field of the answer with the entries.
            **request: Its arguments.
        """
        token: dict[str, Any] = {}
        while True:
            found = self.ask(service, operation, **request, **token)
            yield from found.get(part, [])
            if found.get("NextToken"):
                token = {"NextToken": found["NextToken"]}
            elif found.get("NextContinuationToken"):
                token = {"ContinuationToken": found["NextContinuationToken"]}
            elif found.get("PaginationToken"):
                token = {"PaginationToken": found["PaginationToken"]}
            else:
                return

    def is_encrypted(self, service: str) -> bool:
        """Tells whether a service is reached by TLS."""
        return self._client(service, "").meta.endpoint_url.startswith("https:")

    def _ask(
        self, service: str, operation: str, region: str, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        try:
            from botocore import exceptions, xform_name
        except ImportError as error:
            raise _no_boto3() from error
        name, where = f"{service}:{operation}", region or self.region
        try:
            client = self._client(service, region)
            return getattr(client, xform_name(operation))(**request)
        except exceptions.ClientError as error:
            said = error.response.get("Error", {})
            code = str(said.get("Code") or "")
            if code in ("403", "404"):  # of HeadBucket, which has no text
                code = {"403": "Forbidden", "404": "NoSuchBucket"}[code]
            raise error_of(
                name, code, str(said.get("Message") or code),
                region=where, profile=self.profile,
            ) from error  # fmt: skip
        except (
            exceptions.NoCredentialsError, exceptions.PartialCredentialsError,
            exceptions.ProfileNotFound,
        ) as error:  # fmt: skip
            raise NotLoggedIn(
                f"there are no credentials for {name}: {error}. Expected some in the "
                f"environment, or a profile. {_login(self.profile)}"
            ) from error
        except (
            exceptions.SSOError, exceptions.UnauthorizedSSOTokenError,
            exceptions.TokenRetrievalError, exceptions.CredentialRetrievalError,
        ) as error:  # fmt: skip
            raise NotLoggedIn(
                f"the credentials for {name} have expired or cannot be fetched: "
                f"{error}. Expected a login that lasts. {_login(self.profile)}",
                has_expired=True,
            ) from error
        except exceptions.BotoCoreError as error:
            raise Unanswered(
                f"AWS cannot be asked for {name} in {where}: {error}. Expected its "
                "endpoint to answer. Check the network, the proxy and the region."
            ) from error

    def _client(self, service: str, region: str) -> Any:
        """Returns a client; making them is not safe in several threads."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise _no_boto3() from error
        key = service, region or self.region
        with self._lock:
            if self._session is None:
                self._session = boto3.session.Session(profile_name=self.profile)
            if key not in self._clients:
                config = Config(retries={"mode": "standard", "max_attempts": 5},
                                connect_timeout=10, read_timeout=60)  # fmt: skip
                self._clients[key] = self._session.client(
                    service, region_name=key[1], config=config
                )
            return self._clients[key]

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()


def _no_boto3() -> ConfigError:
    return ConfigError(
        "boto3 is not installed, and a cluster on AWS needs it. Expected the extra "
        "`aws`. Run: pip install 'shoal[aws]'."
    )
