"""HTML pages of one file: the report of a ledger, and certificates of deletion."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.report.certificate import certificate_page as certificate_page
    from demur.report.certificate import write_certificate as write_certificate
    from demur.report.evidence import EvidenceCheck as EvidenceCheck
    from demur.report.evidence import check_evidence as check_evidence
    from demur.report.evidence import evidence_pack as evidence_pack
    from demur.report.evidence import write_evidence as write_evidence
    from demur.report.facts import LedgerFacts as LedgerFacts
    from demur.report.facts import gather as gather
    from demur.report.page import render as render
    from demur.report.page import write_charts as write_charts
    from demur.report.page import write_report as write_report

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
