"""Privacy accounting: the price of an event. Only this package imports dp_accounting.

`price(event, delta)` is an upper bound on the smallest epsilon for which the event is
(epsilon, delta)-indistinguishable; `delta_of(event, epsilon)` the other way round.
Several upper bounds are computed and the smallest is returned (each is true of the
same fixed event, so taking the least costs nothing; an *adaptive* filter may not do
that, see `demur.ledger.rules.filters`):

1. closed form: Gaussians compose to one Gaussian with mu^2 = sum 1/z^2 (exactly);
   pure epsilons add up; (epsilon, delta) pairs add up in both.
2. Renyi: D_a of everything at integer orders, then the conversion of Canonne, Kamath
   and Steinke 2020 (Prop. 12): eps = D_a + log1p(-1/a) - log(a delta) / (a - 1).
3. privacy loss distributions (dp_accounting's, pessimistic connect-the-dots).

Traps of dp_accounting 0.6.0 that this package keeps out, each with a test:

- a NaN event or delta prices at 0 in RDP: our events refuse NaN when they are made;
- `compose(event, count)` ignores `count` for randomised response: not used here,
  pure events enter as `from_privacy_parameters(...).self_compose(count)`;
- under REPLACE_ONE the PLD halves a Gaussian's multiplier and the RDP does not: plain
  Gaussians are always handed over under ADD_OR_REMOVE_ONE, the pair N(0,z^2), N(1,z^2);
- a failed compose is half applied: every call builds a fresh distribution;
- `from_named_tuple` imports what the data names: never used;
- PLD tails are cut at mass 1e-15, so a delta near that is answered by 1 and 2 alone;
- a PLD grid for a large epsilon takes minutes: above 100 it is not built.
"""

from demur.core.accounting.accountants import accountant_epsilon as accountant_epsilon
from demur.core.accounting.accountants import check_accountant as check_accountant
from demur.core.accounting.accountants import (
    fixed_batch_dp_event as fixed_batch_dp_event,
)
from demur.core.accounting.accountants import fixed_batch_epsilon as fixed_batch_epsilon
from demur.core.accounting.accountants import grid_of_accountant as grid_of_accountant
from demur.core.accounting.accountants import (
    relation_of_accountant as relation_of_accountant,
)
from demur.core.accounting.estimates import rough_price as rough_price
from demur.core.accounting.prices import PLD_SMALLEST_DELTA as PLD_SMALLEST_DELTA
from demur.core.accounting.prices import deciding_grid as deciding_grid
from demur.core.accounting.prices import delta_of as delta_of
from demur.core.accounting.prices import price as price
from demur.core.accounting.prices import search_divergence as search_divergence
from demur.core.accounting.prices import search_ratio as search_ratio
from demur.core.accounting.sampled_profiles import profile_of as profile_of
from demur.core.accounting.totals import inverse_square_up as inverse_square_up
from demur.core.accounting.translation import from_dp_event as from_dp_event
from demur.core.accounting.translation import to_dp_event as to_dp_event
from demur.core.accounting.translation import to_relation as to_relation
from demur.core.accounting.translation import (
    unsupported_dp_event as unsupported_dp_event,
)
from demur.core.accounting.upper_bounds import (
    PLD_LARGEST_EPSILON as PLD_LARGEST_EPSILON,
)
