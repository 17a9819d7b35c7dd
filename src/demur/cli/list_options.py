"""Options with several values: `--epsilons 1 2 4`, `1,2,4`, or repeated."""

from __future__ import annotations

from typing import Any

from demur.cli.shell import Command

_WORDS = {"auto", "kmeans", "gmm", "tmm"}


class ManyValues(Command):
    """A command whose list options take all the values that follow them.

    click takes one value for each time an option is named; here the option is named
    again for every further number (or word such as `auto`) that follows.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spread the values, then parse as always."""
        lists = {
            name
            for parameter in self.params
            if getattr(parameter, "multiple", False)
            for name in parameter.opts
        }
        return super().parse_args(ctx, spread(args, lists))


def spread(args: list[str], lists: set[str]) -> list[str]:
    """The arguments with each list option named once for every value.

    >>> spread(["--low", "-1", "0", "in.csv"], {"--low"})
    ['--low', '-1', '--low', '0', 'in.csv']
    """
    out: list[str] = []
    option, fresh = "", False
    for argument in args:
        name = argument.split("=", 1)[0]
        if name in lists:
            option, fresh = name, "=" not in argument
            out.append(argument)
        elif option and fresh:  # the first value is the option's, whatever it is
            out.append(argument)
            fresh = False
        elif option and _is_value(argument):
            out += [option, argument]
        else:
            option = ""
            out.append(argument)
    return out


def numbers(option: str, given: list[str]) -> list[float]:
    """The numbers of a list option."""
    values = []
    for word in _words(given):
        try:
            values.append(float(word))
        except ValueError as error:
            raise ValueError(f"{option} must be numbers; got {word[:40]!r}") from error
    if not values:
        raise ValueError(f"{option} must be numbers; got none")
    return values


def whole_number(option: str, given: str) -> int:
    """A whole number."""
    try:
        return int(given)
    except ValueError as error:
        raise ValueError(
            f"{option} must be a whole number, or auto; got {given[:40]!r}"
        ) from error


def threshold(option: str, given: str) -> float | str:
    """A number, or `auto`."""
    return given if given == "auto" else numbers(option, [given])[0]


def thresholds(option: str, given: list[str]) -> list[float | str]:
    """Numbers, or `auto`."""
    return [threshold(option, word) for word in _words(given)]


def names(given: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if given is None else [name.strip() for name in given.split(",")]


def _words(given: list[str]) -> list[str]:
    words = (word.strip() for text in given for word in text.split(","))
    return [word for word in words if word]


def _is_value(argument: str) -> bool:
    for word in argument.split(","):
        if word in _WORDS:
            continue
        try:
            float(word)
        except ValueError:
            return False
    return True
