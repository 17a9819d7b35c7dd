"""Questions of an evaluation: where their answers are, and what no ledger knows.

The questions follow the subjects of NIST SP 800-226, "Guidelines for Evaluating
Differential Privacy Guarantees" (2025), in our own words. Each has where its answer
lies, and what the ledger does not know about it.
"""

from __future__ import annotations

from demur.core.bounds import BoundSource
from demur.core.rounding import printed_down, printed_up
from demur.ledger import Ledger
from demur.report.facts import LedgerFacts
from demur.report.text import one_line

_QUESTIONS = (
    (
        "How strong is the guarantee: epsilon and delta?",
        "{budgets}",
        "whether these numbers are small enough for this use: that is a decision",
    ),
    (
        "What is the unit of privacy: whose data, how much of it?",
        "{units}; `ledger.json`, budgets",
        "how many records a person really has; one person in two ledgers",
    ),
    (
        "Which two datasets count as neighbours?",
        "the unit of each budget, in `report.html` and `registry.json`",
        "",
    ),
    (
        "Do the releases together stay within the guarantee (composition)?",
        "{entries} entries, charged before their noise was drawn; `verification.txt`",
        "releases that went round the ledger",
    ),
    (
        "Which mechanisms were used?",
        "{mechanisms}; declarations in `ledger.json`",
        "whether the code that ran was the code that was declared",
    ),
    (
        "What bounds do they rest on, and who enforced them?",
        "{bounds}",
        "whether a declared bound is true",
    ),
    (
        "What is not protected?",
        "{unprotected}",
        "what readers know from elsewhere",
    ),
    (
        "Who is trusted (central or local model)?",
        "central, unless `statements.txt` says that points were perturbed by their"
        " owners",
        "who had access to the raw data, and how it is kept",
    ),
    (
        "Where does the noise come from, and is it safe from floating-point attacks?",
        "{noise}; the samplers' distances are part of each declaration",
        "the state of the machines that drew it",
    ),
    (
        "Was the implementation tested or audited?",
        "{audits}; `audits.json` has each with its power",
        "an audit can refute a claim, and cannot prove it",
    ),
    (
        "Who decided on the spending?",
        "{requests}; `requests.json`",
        "whether the names are those of the people",
    ),
    (
        "How useful are the results, and for whom are they wrong?",
        "utilities that were noted: `report.html`",
        "bias against groups, and the use that results are put to",
    ),
    (
        "Are deletions honoured?",
        "{deletions}; `deletions.json`, and `certificates.json` of attached deletion"
        " services",
        "copies of the data elsewhere",
    ),
    (
        "Can the record itself be trusted?",
        "{chain}; `tip.txt` is to be kept elsewhere",
        "rows cut off after the last tip that anybody kept",
    ),
    (
        "Side channels, access control, security of the raw data?",
        "not in a ledger",
        "all of it: ask whoever runs the machines",
    ),
)


def questions_page(ledger: Ledger, facts: LedgerFacts) -> str:
    """A table in plain words, as Markdown."""
    told = _told(ledger, facts)
    lines = [
        f"# What an evaluation asks for: {one_line(facts.dataset)}",
        "",
        "The subjects follow NIST SP 800-226. The second column says where the answer"
        " is, the third what the ledger does not know.",
        "",
        "| question | answer | not known from the ledger |",
        "|---|---|---|",
    ]
    lines += [
        f"| {question} | {_cell(answer.format(**told))} | {unknown or '-'} |"
        for question, answer, unknown in _QUESTIONS
    ]
    return "\n".join(lines) + "\n"


def _told(ledger: Ledger, facts: LedgerFacts) -> dict[str, str]:
    declared = [entry.declaration for entry in ledger.entries()]
    bounds = [bound for each in declared for bound in each.bounds]
    by_source = {
        source: sum(bound.source is source for bound in bounds)
        for source in BoundSource
    }
    unprotected = sorted({text for each in declared for text in each.unprotected})
    requests = ledger.requests()
    return {
        "budgets": "; ".join(
            f"{b.name}: {printed_up(b.spent_epsilon)} of {printed_down(b.epsilon)}"
            f" spent at delta {printed_down(b.delta)}"
            for b in facts.budgets
        ),
        "units": ", ".join(b.name for b in facts.budgets),
        "entries": f"{len(facts.entries):,}",
        "mechanisms": ", ".join(sorted({e.mechanism for e in facts.entries})[:20])
        or "none yet",
        "bounds": ", ".join(f"{n} {s.value}" for s, n in by_source.items() if n)
        or "none was declared",
        "unprotected": "; ".join(unprotected[:20]) or "nothing more was declared",
        "noise": "the operating system's entropy"
        if facts.private
        else "NOT PRIVATE: some of it was seeded",
        "audits": f"{len(facts.audits)} audits, "
        f"{sum(a.refuted for a in facts.audits)} of them refuted a claim",
        "requests": f"{len(requests)} requests for approval"
        if ledger.terms.approval
        else "no charge needed approval",
        "deletions": f"{len(facts.deletions)} entries of deletions",
        "chain": "no problem found" if facts.chain.ok else "DAMAGED",
    }


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
