"""People as the identity provider names them: which tenant and role their groups give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from api.settings import ApiSettings
from shared.database.callers.people import Person
from shared.database.tenancy import Role
from shared.errors import Code, Forbidden

LONGEST_NAME = 64
NAME_CLAIMS = ("email", "preferred_username", "name", "sub")


def person_of(claims: Mapping[str, Any], settings: ApiSettings) -> Person:
    """Return a person with the tenant of the first rule that matches one of their groups, and their highest role there.

    Args:
        claims: claims of a verified ID token.
        settings: settings with the rules.

    Raises:
        Forbidden: ``SIGN_IN_GROUPS_MISSING``, ``SIGN_IN_NO_ROLE``.
    """
    name, groups = name_of(claims), _groups(claims, settings.oidc_groups_claim)
    rules = [rule for rule in settings.oidc_rules if rule.group in groups]
    if not rules:
        raise Forbidden(
            Code.SIGN_IN_NO_ROLE,
            f"None of the groups of {name!r} has a role here.",
            remedy=(
                "Ask an operator for a rule in MENS_OIDC_RULES for one of your groups, or the provider's admin for a "
                "group that has one."
            ),
        )
    tenant = rules[0].tenant
    role = max((rule.role for rule in rules if rule.tenant == tenant), key=list(Role).index)
    return Person(settings.oidc_issuer, claims["sub"], name, tenant, role)


def name_of(claims: Mapping[str, Any]) -> str:
    """Return the name to display for a person: the e-mail address, or else a name. Rights do not depend on it."""
    for claim in NAME_CLAIMS:
        if claim == "email" and claims.get("email_verified") is False:
            continue
        value = claims.get(claim)
        if isinstance(value, str) and (name := _one_line(value)):
            return name
    return "person"


def _one_line(text: str) -> str:
    encodable = text.encode(errors="replace").decode()
    return re.sub(r"[\x00-\x1f\x7f]+", " ", encodable).strip()[:LONGEST_NAME]


def _groups(claims: Mapping[str, Any], claim: str) -> set[str]:
    groups = claims.get(claim)
    if isinstance(groups, list) and all(isinstance(group, str) for group in groups):
        return set(groups)
    # Some providers send a link (`_claim_names`) in place of too many groups; the link is not followed, since that
    # needs the person's token.
    fault = "is not a list of names" if claim in claims else "is missing"
    raise Forbidden(
        Code.SIGN_IN_GROUPS_MISSING,
        f"The identity provider does not report your groups: the claim {claim!r} of its ID token {fault}.",
        remedy=(
            "An operator: let the provider put the groups into the ID token (if there are many, only those that have "
            "a rule), or set MENS_OIDC_GROUPS_CLAIM or MENS_OIDC_SCOPES."
        ),
    )
