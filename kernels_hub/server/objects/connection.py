"""Connects to an S3-compatible store with boto3, which is imported here and only when a store is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_hub.errors import KernelsHubError
from kernels_hub.server.objects.address import S3Address
from kernels_hub.server.objects.answers import load_boto3

if TYPE_CHECKING:
    from botocore.client import BaseClient

_CONNECT_SECONDS, _ATTEMPTS, _CONNECTIONS = 3, 3, 32


def connect(address: S3Address, endpoint: str | None) -> BaseClient:
    """A client of an endpoint. Raises KernelsHubError where boto3 is missing, or finds its configuration at odds."""
    load_boto3()
    from boto3.session import Session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        signature_version="s3v4",
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=address.timeout,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        # Checksums of newer releases of AWS's own: other stores do not know them, and content is read back anyway.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": address.addressing},
    )
    try:
        return Session().client(
            "s3", endpoint_url=endpoint, region_name=address.region or "us-east-1", config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise KernelsHubError(f"the object store cannot be used: {error}") from error
