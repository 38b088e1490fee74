"""API of accounts: users, organisations, and what needs no repository (`/api/whoami-v2` and its neighbours)."""

from __future__ import annotations

from starlette.responses import Response

from kernels_hub.server.accounts import Account
from kernels_hub.server.bodies import CardBody
from kernels_hub.server.call import HubRequest, Route, json_response
from kernels_hub.server.refusal import Refusal, header_text, login_required
from kernels_hub.server.store import timestamp


def whoami(call: HubRequest) -> Response:
    """The user of the token, organisations with roles, and what the token may."""
    token = call.caller.token
    if token is None:
        raise login_required()
    accounts = call.hub.accounts
    organisations = []
    for membership in accounts.organisations_of(token.user):
        account = accounts.required(membership.organisation, "org")
        organisations.append(
            {
                "type": "org",
                "id": account.name,
                "name": account.name,
                "fullname": account.name,
                "roleInOrg": membership.role,
                "isEnterprise": False,
                "trustedKernelPublisher": account.trusted,
            }
        )
    access_token: dict[str, object] = {
        "displayName": token.id,
        "role": token.role if token.repository is None else "fineGrained",
        "createdAt": timestamp(token.created),
    }
    if token.repository is not None:
        permissions = ["repo.content.read"] + (["repo.write"] if token.role == "write" else [])
        scope = {"entity": {"type": "repo", "name": token.repository}, "permissions": permissions}
        access_token["fineGrained"] = {"global": [], "scoped": [scope]}
    return json_response(
        {
            "type": "user",
            "id": token.user,
            "name": token.user,
            "fullname": token.user,
            "isPro": False,
            "emailVerified": False,
            "canPay": False,
            "orgs": organisations,
            "auth": {"type": "access_token", "accessToken": access_token},
        }
    )


def _account(call: HubRequest, kind: str) -> Account:
    account = call.hub.accounts.find(call.params["account"])
    if account is None or account.kind != kind:
        what = "user" if kind == "user" else "organization"
        raise Refusal(404, f"There is no {what} {call.params['account'][:100]}")
    return account


def _owned(call: HubRequest, account: Account) -> dict[str, int]:
    counts = call.hub.search.count_of(call.caller, account.name)
    return {
        "numModels": counts.get("model", 0),
        "numKernels": counts.get("kernel", 0),
        "numDatasets": 0,
        "numSpaces": 0,
    }


def organisation_overview(call: HubRequest) -> Response:
    """An organisation, with the flag that clients' trust checks read."""
    account = _account(call, "org")
    return json_response(
        {
            "name": account.name,
            "fullname": account.name,
            "avatarUrl": "",
            "type": "org",
            "isVerified": account.trusted,
            "trustedKernelPublisher": account.trusted,
            "numUsers": len(call.hub.accounts.members(account.name)),
            **_owned(call, account),
        }
    )


def organisation_members(call: HubRequest) -> Response:
    """Who belongs to an organisation."""
    account = _account(call, "org")
    return json_response(
        [
            {
                "user": member.user,
                "fullname": member.user,
                "avatarUrl": "",
                "type": "user",
                "role": member.role,
            }
            for member in call.hub.accounts.members(account.name)
        ]
    )


def user_overview(call: HubRequest) -> Response:
    """A user."""
    account = _account(call, "user")
    return json_response(
        {
            "user": account.name,
            "name": account.name,
            "fullname": account.name,
            "avatarUrl": "",
            "type": "user",
            "createdAt": timestamp(account.created),
            "orgs": [
                {"name": membership.organisation, "fullname": membership.organisation, "avatarUrl": ""}
                for membership in call.hub.accounts.organisations_of(account.name)
            ],
            **_owned(call, account),
        }
    )


def validate_card(call: HubRequest) -> Response:
    """Whether the YAML at the head of a README parses; always JSON with 200 or 400."""
    from kernels_hub.server.card import card_problems

    try:
        problems = card_problems(call.parse(CardBody).content)
    except Refusal as refusal:
        problems = [refusal.message]
    errors = [{"message": problem} for problem in problems]
    headers = {"X-Error-Message": header_text("; ".join(problems))} if problems else {}
    return json_response({"errors": errors, "warnings": []}, 400 if errors else 200, headers)


def agent_harnesses(_call: HubRequest) -> Response:
    """Clients probe this once a day to name the agent that runs them; none are known here."""
    return json_response({"standardEnvVars": [], "harnesses": {}})


ROUTES = [
    Route("GET", "/api/whoami-v2", whoami),
    Route("GET", "/api/organizations/{account}/overview", organisation_overview),
    Route("GET", "/api/organizations/{account}/members", organisation_members),
    Route("GET", "/api/users/{account}/overview", user_overview),
    Route("POST", "/api/validate-yaml", validate_card, slow=True, reads=True),
    Route("GET", "/api/agent-harnesses", agent_harnesses),
]
