"""Roles, and what each may do.

No role may both charge and decide. An administrator hands out tokens, and so can give
anybody any role; what was done under a token has the token's name in the chain.
"""

from __future__ import annotations

from enum import StrEnum


class Permission(StrEnum):
    """What a route asks for."""

    SIGN_IN = "sign in"  # nobody yet: the way in, and the health of the service
    READ = "read"
    CHARGE = "charge"
    DECIDE = "decide"
    AUDIT = "audit"
    ADMINISTER = "administer"


class Role(StrEnum):
    """What a token is for."""

    VIEWER = "viewer"
    ANALYST = "analyst"
    OFFICER = "officer"
    AUDITOR = "auditor"
    ADMINISTRATOR = "administrator"

    def may(self, permission: Permission) -> bool:
        """Whether this role may do that."""
        return permission is Permission.SIGN_IN or permission in _MAY[self]


_MAY = {
    Role.VIEWER: {Permission.READ},
    Role.ANALYST: {Permission.READ, Permission.CHARGE},
    Role.OFFICER: {Permission.READ, Permission.DECIDE},
    Role.AUDITOR: {Permission.READ, Permission.AUDIT},
    Role.ADMINISTRATOR: {Permission.READ, Permission.ADMINISTER},
}
