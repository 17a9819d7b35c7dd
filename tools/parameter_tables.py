"""A griffe extension: a table of parameters under every function and class of the API.

Types and defaults come from the signatures, defaults as values where a signature names
a constant. Units, and what is private, come from the one vocabulary of the library: a
word of `WORDS` means the same in every signature. Others are left to the docstring.
"""

from __future__ import annotations

from html import escape
from typing import Any

import griffe

# word: what it is and in which unit; then what is private about it.
WORDS = {
    "epsilon": ("privacy loss, at least 0, without a unit", "public"),
    "delta": ("a probability", "public"),
    "unit": ("the neighbouring relation", "public"),
    "radius": ("a distance, in the unit of the rows of its space", "public"),
    "space": ("the name of a record metric", "public"),
    "norm_bound": ("a length, in the unit of the rows", "public"),
    "sigma": ("standard deviation, in the unit of the value", "public"),
    "lam": ("weight of the regulariser", "public"),
    "dimension": ("a number of coordinates", "public"),
    "ledger": ("what pays; None: in memory, not recorded", "public"),
    "label": ("name of the entry", "public, as it stands"),
    "idempotency_key": ("name of the call, to repeat it", "public, as it stands"),
    "source": ("entropy of the noise; None: the operating system", "secret if seeded"),
    "classes": ("the classes; None: read from the labels", "public"),
    "max_iter": ("a number of steps", "public"),
    "steps": ("a number of steps", "public"),
    "iterations": ("a number of steps", "public"),
    "random_state": ("a seed of public choices, never of noise", "public"),
    "record_id": ("an id", "a pseudonym is stored, the id is not"),
    "subject_id": ("an id", "a pseudonym is stored, the id is not"),
    "tip": ("row number and hash of a chain", "public"),
    "signer": ("a public key, in hexadecimal", "public"),
    "signing_key": ("an Ed25519 key or its PEM file", "**secret**"),
    "payment": ("the entry, the key of its noise, the commit", "**secret**"),
    "X": ("rows", "**private** where they are people's"),
    "y": ("labels, or targets", "**private** where they are people's"),
    "sample_weight": ("weights of rows", "**private** where they are people's"),
    "low": ("lower bound, in the unit of the column", "public: not the data's own"),
    "high": ("upper bound, in the unit of the column", "public: not the data's own"),
    "mechanism": ("what draws the noise, with its declaration", "public"),
    "digest": ("what binds an entry to its input", "stored under a secret key"),
    "count": ("a number of runs", "public"),
    "actor": ("who charges", "public, as it stands"),
    "timeouts": ("seconds", "public"),
    "entry": ("an entry of the ledger, or its id", "public"),
    "promise": ("an epsilon and a delta at a unit", "public"),
    "assumptions": ("what is assumed, in words", "public"),
    "artefact": ("a digest of what was released", "public, as it stands"),
    "sequence": ("number of a row of the ledger", "public"),
    "time": ("a time (UTC), in ISO 8601", "public"),
    "dataset": ("name of the dataset", "public, as it stands"),
    "path": ("a file or folder", ""),
    "params": ("parameters of the model", ""),
    "num_examples": ("a number of examples", "public"),
    "sampling_prob": ("probability of each example in a step", "public"),
    "l2_clip_norm": ("largest norm of an example's gradient", "public"),
    "noise_multiplier": ("standard deviation over sensitivity", "public"),
    "repetitions": ("the law of the number of trials", "public"),
    "records_per_person": ("the most records of one person", "public"),
}
# Words that are private data in these functions alone.
_PRIVATE_IN = {
    "value": (("release", "apply", "digest", "check"), "the exact value"),
    "data": (("fit",), "the records"),
    "points": (("privatize",), "points of the unit cube"),
}
_IMPLICIT = ("self", "cls")


class ParameterTables(griffe.Extension):
    """Put the table at the end of each docstring."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Walk the package once it is complete: dataclasses have parameters then."""
        _walk(pkg)


def _walk(thing: griffe.Object) -> None:
    for member in list(thing.members.values()):
        if member.is_alias or member.name.startswith("_"):
            continue
        if isinstance(member, griffe.Function | griffe.Class) and member.docstring:
            table = table_of(member)
            if table:
                member.docstring.value = f"{member.docstring.value}\n\n{table}"
        if isinstance(member, griffe.Module | griffe.Class):
            _walk(member)


def table_of(thing: griffe.Function | griffe.Class) -> str:
    """The table of one signature, in Markdown; nothing for one without parameters."""
    rows = [
        _row(parameter, thing)
        for parameter in thing.parameters
        if parameter.name not in _IMPLICIT
    ]
    if not rows:
        return ""
    titles = ["parameter", "type", "default", "what it is", "private"]
    if not any(row[3] for row in rows):
        titles = titles[:3]
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line[: len(titles)])} |" for line in lines)


def _row(parameter: griffe.Parameter, thing: griffe.Object) -> list[str]:
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }
    name = f"{stars.get(parameter.kind, '')}{parameter.name}"
    default = "required" if parameter.required else _value(parameter.default, thing)
    if parameter.kind in stars:
        default = ""
    meaning, private = WORDS.get(parameter.name, ("", ""))
    functions, exact = _PRIVATE_IN.get(parameter.name, ((), ""))
    if thing.name in functions:
        meaning, private = exact, "**private**"
    kind = "" if parameter.annotation is None else _code(parameter.annotation)
    return [f"`{name}`", kind, default, meaning, private]


def _value(default: Any, thing: griffe.Object) -> str:
    """A default; where it is the name of a constant, that constant's value."""
    text = str(default)
    known = thing.module.members.get(text)
    if isinstance(known, griffe.Attribute) and known.value is not None:
        text = str(known.value)
    return _code(text)


def _code(text: Any) -> str:
    # As HTML: a bar would end the cell, and a code span shows its escape.
    shown = escape(" ".join(str(text).split()), quote=False).replace("|", "&#124;")
    return f"<code>{shown}</code>"
