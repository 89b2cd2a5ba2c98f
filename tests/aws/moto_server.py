"""moto as a process of its own, with what it lacks: capacity, quotas, images.

Started by a fixture with a folder, and perhaps an address to listen at; it prints its
address, and ends when its standard input closes.
`capacity` in its folder says how many instances may run, `activities` (JSON) what the
groups tell about failed launches, `prices` (JSON) what an hour of a type costs,
`closed` (JSON) regions whose calls a policy of the organisation denies, `expired`
(JSON) access keys whose session has ended.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from moto.autoscaling import models as groups
from moto.autoscaling import responses as group_answers
from moto.core.common_models import CloudFormationModel
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2 import responses as ec2
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.secretsmanager.models import secretsmanager_backends
from moto.server import ThreadedMotoServer  # pyright: ignore[reportAttributeAccessIssue]
from moto.servicequotas import models as quotas

QUOTAS = {"L-1216C47A": 64.0, "L-DB2E81BA": 64.0, "L-417A185B": 0.0}


def main(folder: Path, address: str = "127.0.0.1") -> None:
    _cap_launches(folder)
    _tell_activities(folder)
    _know_quotas()
    _tell_prices(folder)
    _close_regions(folder)
    _end_sessions(folder)
    _know_dry_runs()
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


class Secret(CloudFormationModel):
    """AWS::SecretsManager::Secret, which moto's CloudFormation lacks."""

    __module__ = "moto.secretsmanager.models"  # moto files models by it

    def __init__(self, name: str) -> None:
        self.physical_resource_id = name

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::SecretsManager::Secret"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **kwargs: Any,
    ) -> Secret:
        asked = cloudformation_json["Properties"]["GenerateSecretString"]
        told = {name: str(value).lower() == "true" for name, value in asked.items()}
        backend = secretsmanager_backends[account_id][region_name]
        password = backend.get_random_password(
            password_length=int(asked["PasswordLength"]),
            exclude_characters=asked["ExcludeCharacters"], exclude_numbers=False,
            exclude_punctuation=told["ExcludePunctuation"],
            exclude_uppercase=told["ExcludeUppercase"], exclude_lowercase=False,
            include_space=False, require_each_included_type=True,
        )  # fmt: skip
        backend.create_secret(
            name=resource_name,
            secret_string=json.loads(password)["RandomPassword"],
            secret_binary=None, description=None, tags=None, kms_key_id=None,
            client_request_token=None, replica_regions=[], force_overwrite=False,
        )  # fmt: skip
        return cls(resource_name)


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


def _cap_launches(folder: Path) -> None:
    """Launches no more instances than `capacity` says."""
    kind = groups.FakeAutoScalingGroup
    launch = kind.replace_autoscaling_group_instances

    def capped(self: Any, count_needed: int, propagated_tags: Any) -> None:
        running = sum(
            len(group.instance_states)
            for group in self.autoscaling_backend.autoscaling_groups.values()
        )
        free = max(0, int(_read(folder / "capacity", 99)) - running)
        launch(self, min(count_needed, free), propagated_tags)

    kind.replace_autoscaling_group_instances = capped


def _tell_activities(folder: Path) -> None:
    """Answers DescribeScalingActivities with the text of `activities`, for workers."""

    def described(self: Any) -> ActionResult:
        name = self._get_param("AutoScalingGroupName") or ""
        told = _read(folder / "activities", []) if "Workers" in name else []
        listed = [
            {
                "ActivityId": f"a{number}", "AutoScalingGroupName": name,
                "Cause": "it was asked for", "StatusCode": "Failed",
                "StatusMessage": text, "StartTime": datetime(2026, 1, 1),
            }
            for number, text in enumerate(told)
        ]  # fmt: skip
        return ActionResult({"Activities": listed})

    group_answers.AutoScalingResponse.describe_scaling_activities = described


def _tell_prices(folder: Path) -> None:
    """Answers the Price List API, which moto lacks, with the types of `prices`."""
    answer = DomainDispatcherApplication.__call__

    def answered(self: Any, environ: Any, start_response: Any) -> Any:
        if "/pricing/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return answer(self, environ, start_response)
        size = int(environ.get("CONTENT_LENGTH") or 0)
        asked = json.loads(environ["wsgi.input"].read(size))
        named = {one["Field"]: one["Value"] for one in asked["Filters"]}
        price = _read(folder / "prices", {}).get(named["instanceType"])
        part = {"unit": "Hrs", "pricePerUnit": {"USD": str(price)}}
        product = {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": part}}}}}
        listed = [] if price is None else [json.dumps(product)]
        body = json.dumps({"FormatVersion": "aws_v1", "PriceList": listed}).encode()
        sizes = [("Content-Length", str(len(body)))]
        start_response(
            "200 OK", [*sizes, ("Content-Type", "application/x-amz-json-1.1")]
        )
        return [body]

    DomainDispatcherApplication.__call__ = answered


def _close_regions(folder: Path) -> None:
    """Denies calls in the regions of `closed`."""
    said = "with an explicit deny in a service control policy"
    _refuse(folder / "closed", "/{}/", "403 Forbidden", "AccessDenied", said)


def _end_sessions(folder: Path) -> None:
    """Refuses the access keys of `expired`, as AWS does after the end of a login."""
    said = "The security token included in the request is expired"
    _refuse(folder / "expired", "={}/", "400 Bad Request", "ExpiredToken", said)


def _refuse(named: Path, mark: str, status: str, code: str, said: str) -> None:
    """Refuses requests whose signature has the mark of a name in a file."""
    answer = DomainDispatcherApplication.__call__

    def answered(self: Any, environ: Any, start_response: Any) -> Any:
        signed = environ.get("HTTP_AUTHORIZATION", "")
        if not any(mark.format(one) in signed for one in _read(named, [])):
            return answer(self, environ, start_response)
        error = f"<Error><Code>{code}</Code><Message>{said}</Message></Error>"
        body = f"<ErrorResponse>{error}</ErrorResponse>".encode()
        headers = [("Content-Length", str(len(body))), ("Content-Type", "text/xml")]
        start_response(status, headers)
        return [body]

    DomainDispatcherApplication.__call__ = answered


def _know_dry_runs() -> None:
    """Carries no dry run out; moto itself does some of them."""
    check = ec2.EC2Response._authenticate_and_authorize_normal_action

    def checked(self: Any, resource: str = "*") -> None:
        check(self, resource)
        if self._get_param("DryRun", False):
            name = camelcase_to_underscores(self._get_action())
            self.__dict__[name] = self.error_on_dryrun

    ec2.EC2Response._authenticate_and_authorize_normal_action = checked


def _know_quotas() -> None:
    def quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        return {"QuotaCode": quota_code, "Value": QUOTAS[quota_code]}

    quotas.ServiceQuotasBackend.get_service_quota = quota


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
