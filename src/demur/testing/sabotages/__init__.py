"""Sabotages: errors of demur on purpose, which audits and tests have to find."""

from demur.testing.sabotages.catalogue import CATALOGUE as CATALOGUE
from demur.testing.sabotages.catalogue import sabotage as sabotage
from demur.testing.sabotages.patches import Category as Category
from demur.testing.sabotages.patches import Sabotage as Sabotage
from demur.testing.sabotages.run import Finding as Finding
from demur.testing.sabotages.run import found_by_audit as found_by_audit
