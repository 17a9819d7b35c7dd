"""The book: budgets, filters, entries, reservations, hash chain and store."""

from demur.ledger.book import Ledger as Ledger
from demur.ledger.budget import Budget as Budget
from demur.ledger.chain import Head as Head
from demur.ledger.filters import Filter as Filter
from demur.ledger.filters import GaussianMeter as GaussianMeter
from demur.ledger.filters import RenyiMeter as RenyiMeter
from demur.ledger.notes import Note as Note
from demur.ledger.own import own_book as own_book
from demur.ledger.reader import BudgetStatus as BudgetStatus
from demur.ledger.reading import Reading as Reading
from demur.ledger.reservation import Draw as Draw
from demur.ledger.reservation import Reservation as Reservation
from demur.ledger.server import Timeouts as Timeouts
from demur.ledger.verification import Verification as Verification
