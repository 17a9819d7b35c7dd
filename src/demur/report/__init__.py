"""The report: one self-contained page about a ledger, and its charts as files."""

from demur.report.facts import LedgerFacts as LedgerFacts
from demur.report.facts import gather as gather
from demur.report.page import render as render
from demur.report.page import write_charts as write_charts
from demur.report.page import write_report as write_report
