"""Access to upload addresses: whoever holds one, as long as the token that asked for it may write."""

from __future__ import annotations

from collections.abc import Mapping

from kernels_hub.server.access import Caller
from kernels_hub.server.call import HubRequest
from kernels_hub.server.refusal import forbidden, repository_not_found
from kernels_hub.server.repositories import Repository
from kernels_hub.server.signing import Kind


def check_address(
    call: HubRequest, kind: type[Kind], path: Mapping[str, str], query: str
) -> tuple[Kind, Repository]:
    """What a signed address is for, and its repository. Blocks.

    Arguments are those of `Signer.check`. Refuses what that refuses, and an address whose token was revoked or has
    expired, whose user may no longer write to the repository, and whose repository was deleted.
    """
    address = call.hub.signer.check(kind, path, query)
    token = call.hub.accounts.token_by_id(address.token)
    if token is None:
        raise forbidden("The token that asked for this upload address was revoked or has expired")
    call.user = token.user
    repository = call.hub.repositories.by_id(address.repository)
    if repository is None:
        raise repository_not_found(anonymous=False)
    call.hub.access.check_write(Caller(token), repository.namespace, repository.name)
    return address, repository
