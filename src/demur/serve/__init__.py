"""A service in front of ledgers: pages for people, an API for programs, roles for both.

It needs the extra `demur[serve]` (Starlette, uvicorn, Jinja2). A client of a service
needs none of it: `Ledger.open("https://HOST/ledgers/NAME", token=...)`.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.serve.access import AccessStore as AccessStore
    from demur.serve.access import Grant as Grant
    from demur.serve.app import create_app as create_app
    from demur.serve.roles import Permission as Permission
    from demur.serve.roles import Role as Role
    from demur.serve.routes import ROUTES as ROUTES
    from demur.serve.server import RunningService as RunningService
    from demur.serve.settings import Settings as Settings

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
