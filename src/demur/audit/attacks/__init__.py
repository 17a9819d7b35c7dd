"""Attacks on releases, each beside the bound that its success cannot exceed."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.audit.attacks.attempts import Attempt as Attempt
    from demur.audit.attacks.attempts import identification as identification
    from demur.audit.attacks.attempts import membership as membership
    from demur.audit.attacks.gains import AttackGains as AttackGains
    from demur.audit.attacks.gains import attack_gains as attack_gains
    from demur.audit.attacks.gains import gains_of_entry as gains_of_entry
    from demur.audit.attacks.scores import direction_scores as direction_scores
    from demur.audit.attacks.scores import report_scores as report_scores

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
