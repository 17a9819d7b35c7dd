"""A private search over settings of a training config file (`demur train --tune`).

The settings are named by table and name, as in `training.learning_rate`. Everything
else, the promise included, is the file's: [privacy] epsilon is what the whole search
costs. Who is held back follows from the ids that `[data] id` names. Where records may
be added or removed there must be such ids, because row numbers move when a row is gone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import ParameterGrid

from demur.core.promise import Promise
from demur.ledger import Ledger
from demur.training.config_file import (
    RunResult,
    Tables,
    config_model,
    config_rows,
    first_parameters,
    model_place,
    optimizer_of,
    plan_of,
    resources_of,
    write_model,
)
from demur.training.data import as_data
from demur.training.models import cross_entropy
from demur.tuning.errors import NotSearchable
from demur.tuning.holdout import SHARE, held_back
from demur.tuning.plan_search import PlanSetting, search_plans
from demur.tuning.scores import NoisyScore, correct_answers
from demur.tuning.search import SearchTerms

_TUNED = {
    "training.learning_rate",
    "training.momentum",
    "training.optimizer",
    "training.batch_size",
    "training.steps",
    "training.average",
    "privacy.clip_norm",
    "privacy.bands",
}
_NOISE = ("batch_size", "steps")  # of [training]
_AT_ONCE = 4096  # held-back rows that are judged together


def search_config(
    config: Tables,
    home: Path,
    grid: Mapping[str, Sequence[Any]],
    *,
    open_ledger: Callable[[str], Ledger | None],
    share: float = SHARE,
) -> RunResult:
    """Search over the grid, write the winner's parameters; paths are from `home`."""
    unknown = sorted(set(grid) - _TUNED)
    if unknown:
        raise NotSearchable(
            f"--tune takes settings among {sorted(_TUNED)}; got {unknown[0]!r}. Nothing"
            " was spent."
        )
    data, output = config["data"], config["output"]
    rows = config_rows(home / data["train"], data)
    test = config_rows(home / data["test"], data) if "test" in data else None
    model = config_model(config["model"], data, rows["x"].shape[1:])
    place = model_place(config, home)
    back = held_back(_ids(config, home, len(rows["y"])), share)
    if back.all() or not back.any():
        raise NotSearchable(
            f"with --held-back {share:g} all persons, or none, would be held back:"
            " choose another share. Nothing was spent."
        )
    x, y = np.asarray(rows["x"]), rows["y"]
    config = _for_the_rest(config, share, int(np.count_nonzero(~back)))
    unit = plan_of(config).unit
    privacy = config["privacy"]
    promise = Promise(unit, float(privacy["epsilon"]), float(privacy["delta"]))

    def settings(epsilon: float) -> list[PlanSetting]:
        found = []
        plans: dict[str, Any] = {}  # by what the noise depends on
        for setting in ParameterGrid({k: list(v) for k, v in grid.items()}):
            each = _changed(config, setting, epsilon)
            average = each["training"].get("average")
            optimizer = optimizer_of(each)
            noise = str([each["privacy"], *map(each["training"].get, _NOISE)])
            if noise not in plans:
                plans[noise] = plan_of(each)
            found.append(PlanSetting(setting, plans[noise], optimizer, average))
        return found

    def predict(done: Any, rows: Any) -> Any:
        params = done.value if done.average is None else done.average
        parts = [
            np.asarray(model.logits(params, rows[i : i + _AT_ONCE])).argmax(-1)
            for i in range(0, len(rows), _AT_ONCE)
        ]
        return np.concatenate(parts)

    def score(one: Promise) -> NoisyScore:
        # The models answer row by row.
        return correct_answers(x[back], y[back], one, predict=predict, assumptions=())

    ledger = open_ledger(output.get("dataset", Path(data["train"]).stem))
    try:
        found = search_plans(
            settings,
            promise,
            cross_entropy(model),
            first_parameters(config, model),
            {"x": x[~back], "y": y[~back]},
            score=score,
            ledger=ledger,
            terms=SearchTerms(output.get("label", f"search for {place.stem}")),
            resources=resources_of(config),
        )
    finally:
        if ledger is not None:
            ledger.close()
    if found.outcome != "found":
        raise NotSearchable(
            "every run of the search failed, and nothing more is told. The entry is"
            " spent. Check the settings, and search again."
        )
    return write_model(config, home, model, found.value, test)


def _ids(config: Tables, home: Path, rows: int) -> Any:
    data = config["data"]
    if "id" in data:
        columns = as_data(home / data["train"], columns=[data["id"]]).columns
        return np.asarray(columns[data["id"]]).reshape(-1)
    if config["privacy"]["unit"] == "add_or_remove_one":
        raise NotSearchable(
            "[data] must name the column of the persons' ids (id) for this unit: who is"
            " held back must not change when somebody else is added or removed, and row"
            " numbers do. Nothing was spent."
        )
    return np.arange(rows)


def _for_the_rest(config: Tables, share: float, count: int) -> Tables:
    """The config for those who are trained on; their number is public, or a guess."""
    rest = copy.deepcopy(config)
    examples = rest["data"]["examples"]
    alone = rest["privacy"]["unit"] == "add_or_remove_one"
    rest["data"]["examples"] = round(examples * (1 - share)) if alone else count
    return rest


def _changed(config: Tables, setting: Mapping[str, Any], epsilon: float) -> Tables:
    changed = copy.deepcopy(config)
    for name, value in setting.items():
        table, _, key = name.partition(".")
        changed[table][key] = value
    changed["privacy"]["epsilon"] = epsilon
    return changed
