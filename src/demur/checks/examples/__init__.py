"""How the package's own classes are built for the contracts, and who is exempt."""

from demur.checks.examples.exempt import EXEMPT as EXEMPT
from demur.checks.examples.exempt import READERS as READERS
from demur.checks.examples.exempt import reason as reason
from demur.checks.examples.registry import EXAMPLES as EXAMPLES
from demur.checks.examples.registry import NoExample as NoExample
from demur.checks.examples.registry import subjects_of as subjects_of
