"""Meta-estimators, folds and workers around an estimator: what they do to a promise.

A promise is about one record of the rows that an estimator is given. Some of
scikit-learn's meta-estimators hand on rows of which one record decides more than its
own: the final estimator of a stack is given other models' predictions, a bootstrap
repeats records, a pair of classes has as many rows as their labels say. They are
refused by name. Folds that are stratified by the labels, classes that a meta-estimator
numbers by the labels it finds, parameters that a search chose by scores, estimators of
other libraries and workers, whose stack ends where they begin, become conditions of the
statement; and what a meta-estimator fits by itself, without noise, is named there.

All of this is read off the call stack, once in each fit.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from weakref import WeakSet

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from demur.core import accounting
from demur.core.accounting.events import BestOf, GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.accounting.repetitions import default_repetitions
from demur.core.adjacency import Ball, Unit
from demur.core.errors import NotPrivate
from demur.core.promise import Promise
from demur.core.rounding import printed_up

UNSEEN = (
    "no step around the worker (a thread or a process) that fitted this head was fitted"
    " on the same rows, and no label decided which rows it was given (conditional: the"
    " steps around this worker were not seen)"
)
_PREDICTIONS = "it is given predictions of models that were fitted on the same records"
_SCORES = "it chooses columns by scores on the same records, which no entry pays for"
_COLUMNS = (
    "the columns were chosen by earlier releases of {kind}, each charged on its own"
)
_UNPAID = ", which it fits on the same records without noise, is not published"
_NUMBERED = (
    "every class has a record in these data and in every neighbouring dataset"
    " (conditional: {kind} reads the classes off the labels, and where one has no"
    " record it numbers all of them anew)"
)
_DRAWN = "the weights, by which {kind} draws records, are public"
_CHOSEN = (
    "the parameters tell nothing about the records (conditional: {kind} chose them by"
    " scores on the same records, which no entry pays for)"
)
_TOLD: WeakSet[Any] = WeakSet()  # searches that were compared with a private one
_WORKERS = ("joblib.externals.loky.", "multiprocessing.", "concurrent.futures.")

Check = Callable[[Any, dict[str, Any], set[int], Unit], str | None]


def _is_final(meta: Any, inside: set[int]) -> bool:
    final = getattr(meta, "final_estimator_", None)
    return final is not None and id(final) in inside


def _stack(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    final = _is_final(meta, inside) and meta.cv != "prefit"
    return _PREDICTIONS if final else None


def _weighs(bag: Any) -> bool:
    return getattr(bag, "_sample_weight", None) is not None


def _bag(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    if meta.bootstrap_features:
        return "bootstrap_features=True repeats columns. Set it to False"
    # Where a record's repetitions are its weight, the head bounds them.
    if meta.bootstrap and local.get("consumes_sample_weight") is False:
        return "bootstrap=True repeats records. Set it to False"
    if _weighs(meta) and not isinstance(unit, Ball):
        return "the weights of all records decide who is drawn, and are private"
    return None


def _pairs(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    if isinstance(unit, Ball):
        return None
    return f"the number of rows of two classes is not public at {unit}"


def _chain(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    return _PREDICTIONS if meta.cv is not None else None


def _always(why: str) -> Check:
    return lambda meta, local, inside, unit: why


_CHECKS: dict[str, Check] = {
    "_BaseStacking": _stack,
    "BaseBagging": _bag,
    "OneVsOneClassifier": _pairs,
    "ClassifierChain": _chain,
    "SelfTrainingClassifier": _always("one record decides its own label"),
    "BaseWeightBoosting": _always("one record decides the weights of all"),
    "RFECV": _always(_SCORES),
    "SequentialFeatureSelector": _always(_SCORES),
}


def _layered(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    if _is_final(meta, inside):
        return "the estimators of {kind} were fitted on public data"
    return "the final estimator of {kind}" + _UNPAID


def _renumbered(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    return None if isinstance(unit, Ball) else _NUMBERED


def _drawn(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    return _DRAWN if _weighs(meta) else None


def _searched(meta: Any, local: dict[str, Any], inside: set[int], unit: Unit) -> Any:
    """Halving drops candidates by their scores, and the last fit is of the best."""
    best = getattr(meta, "best_estimator_", None)
    chosen = best is not None and id(best) in inside
    several = len(local.get("results", {}).get("params", ())) > 1
    return _CHOSEN if (chosen and several) or local.get("itr", 0) else None


_CONDITIONS: dict[str, Check] = {
    "_BaseStacking": _layered,
    "RFE": _always(_COLUMNS),
    "CalibratedClassifierCV": _always("the calibration of {kind}" + _UNPAID),
    "TunedThresholdClassifierCV": _always("the threshold of {kind}" + _UNPAID),
    "BaseBagging": _drawn,
    "BaseSearchCV": _searched,
    "VotingClassifier": _renumbered,
    "StackingClassifier": _renumbered,
    "BaggingClassifier": _renumbered,
    "OneVsRestClassifier": _renumbered,
    "OutputCodeClassifier": _renumbered,
}


def frames() -> Iterator[FrameType]:
    """The call stack from here on, from the inside out."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _owner(frame: FrameType) -> Any:
    """The object whose method runs: its first argument, by whatever name."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    for kind in type(first).__mro__:
        method = kind.__dict__.get(code.co_name)
        own = inspect.unwrap(method) if callable(method) else None
        if getattr(own, "__code__", None) is code:
            return first
    return None


def conditions_around(estimator: object, unit: Unit) -> tuple[str, ...]:
    """What a statement about `estimator`, which is being fitted, rests on.

    A meta-estimator that breaks the promise at `unit` is refused by name.
    """
    conditions: list[str] = []
    inside = {id(estimator)}  # what is being fitted inside of a frame
    in_fold = waiting = False
    for frame in frames():
        module = str(frame.f_globals.get("__name__", ""))
        local = frame.f_locals
        if module.split(".")[0] == "sklearn":
            in_fold = in_fold or "train" in local or "train_idx" in local
            if frame.f_code.co_name == "_fit_ovo_binary":  # all that a worker shows
                _refuse_if(_pairs(None, local, inside, unit), "OneVsOneClassifier")
            if in_fold and not isinstance(unit, Ball):
                conditions += _stratified(local)
        waiting = _is_waiting(frame, module, waiting)
        owner = _owner(frame)
        # Bagging builds its estimators in a function, which has it by this name.
        bag = local.get("ensemble") if module.startswith("sklearn.") else None
        for meta in (owner, bag):
            if isinstance(meta, BaseEstimator) and meta is not estimator:
                conditions += _conditions_of(meta, frame, inside, unit)
        inside |= {id(owner), id(local.get("estimator"))}
    if waiting or threading.current_thread() is not threading.main_thread():
        conditions.append(UNSEEN)
    return tuple(dict.fromkeys(conditions))


def searched_settings() -> tuple[object, int, int] | None:
    """The search of scikit-learn on the call stack, its settings and its folds.

    A worker shows none: its stack ends where it begins.
    """
    for frame in frames():
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("sklearn.model_selection"):
            continue
        local = frame.f_locals
        if frame.f_code.co_name == "evaluate_candidates" and "n_candidates" in local:
            return local.get("self"), int(local["n_candidates"]), int(local["n_splits"])
    return None


def search_around() -> tuple[object, int, int] | None:
    """The search of scikit-learn around a fit, its settings and folds; told once."""
    around = searched_settings()
    if around is None or around[0] in _TOLD:
        return None
    _TOLD.add(around[0])
    return around


def compare_with_a_private_search(promise: Promise, private: str) -> None:
    """Inside a search that charges every fit: what a `private` one would cost, once."""
    around = search_around()
    if around is None:
        return
    search, settings, folds = around
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    event = BestOf((GaussianEvent(1.0 / mu),), default_repetitions(settings))
    warnings.warn(
        f"{type(search).__name__} charges each of its {settings * folds} fits with"
        f" epsilon {printed_up(promise.epsilon)}; {private} over the same {settings}"
        " settings, at the same noise, would cost epsilon"
        f" {printed_up(accounting.price(event, promise.delta))} in all.",
        stacklevel=2,
    )


def _is_waiting(frame: FrameType, module: str, waiting: bool) -> bool:
    """Whether a worker's frame was seen whose caller was not."""
    if module.startswith(_WORKERS):
        return True
    if module != "joblib.parallel":
        return waiting
    kind = type(_owner(frame)).__name__
    if kind == "BatchedCalls":
        return True
    return waiting and kind != "Parallel"


def _conditions_of(
    meta: BaseEstimator, frame: FrameType, inside: set[int], unit: Unit
) -> list[str]:
    kind = type(meta).__name__
    known = [c for c in type(meta).__mro__ if c.__module__.split(".")[0] == "sklearn"]
    conditions = []
    for base in known:
        check = _CHECKS.get(base.__name__)
        if check is not None:
            _refuse_if(check(meta, frame.f_locals, inside, unit), kind)
        condition = _CONDITIONS.get(base.__name__)
        if condition is not None:
            words = condition(meta, frame.f_locals, inside, unit)
            conditions += [words.format(kind=kind)] if words else []
    home = type(meta).__module__.split(".")[0]
    if home not in ("sklearn", "demur") and not isinstance(meta, Pipeline):
        conditions.append(
            f"{kind}, which fitted this head, hands on one row for each record, by a"
            " rule that does not depend on these records (conditional: demur does not"
            " know it)"
        )
    return conditions


def _refuse_if(why: str | None, kind: str) -> None:
    if why is not None:
        raise NotPrivate(
            f"an estimator inside {kind} cannot keep its promise: {why}. Fit it outside"
            f" of {kind}, or with a plain VotingClassifier around it. Nothing was"
            " charged."
        )


def _stratified(local: dict[str, Any]) -> list[str]:
    """A condition for each splitter of these variables that looks at labels."""
    splitters = [local.get(name) for name in ("cv", "cv_orig")]
    splitters.append(getattr(local.get("self"), "_checked_cv_orig", None))
    return [
        f"no label decides which records are in a fold (conditional:"
        f" {type(splitter).__name__} looks at the labels of all records, and one that"
        " is replaced moves others; use KFold)"
        for splitter in splitters
        if "Stratified" in type(splitter).__name__
    ]
