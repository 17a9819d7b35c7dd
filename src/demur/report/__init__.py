"""The report: one self-contained page about a book."""

from demur.report.page import write_report as write_report
