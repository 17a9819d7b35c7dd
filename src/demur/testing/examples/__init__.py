"""Examples of demur's own classes for the contracts, and exemptions."""

from demur.testing.errors import NoExample as NoExample
from demur.testing.examples.exempt import EXEMPT as EXEMPT
from demur.testing.examples.exempt import READERS as READERS
from demur.testing.examples.exempt import reason as reason
from demur.testing.examples.registry import EXAMPLES as EXAMPLES
from demur.testing.examples.registry import subjects_of as subjects_of
