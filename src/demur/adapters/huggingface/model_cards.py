"""Model cards: what a private model is, what protects the people in its data."""

from __future__ import annotations

import json
import math
from typing import Any

import jax

from demur.adapters.huggingface.encoders import LocalEncoder
from demur.adapters.torch.modules import PrivateModule
from demur.core.entry import Entry
from demur.training.config_file import Tables
from demur.training.plans.plan import DPExecutionPlan


def model_card(
    encoder: LocalEncoder,
    private: PrivateModule,
    plan: DPExecutionPlan,
    config: Tables,
    entry: Entry,
    test_accuracy: float | None,
) -> str:
    """The README.md of a model folder: public facts and the statement of its entry."""
    data, training = config["data"], config["training"]
    trained = sum(math.prod(a.shape) for a in jax.tree.leaves(private.params))
    whole = sum(p.numel() for p in encoder.module.parameters())
    settings: list[tuple[str, Any]] = [
        ("parameters trained", f"{trained:,} beside {whole:,}"),
        ("trained", config["model"].get("trainable", "lora")),
        ("tokens of a text", config["model"].get("length", 128)),
        ("steps", plan.iterations),
        ("expected batch", training["batch_size"]),
        ("optimizer", training.get("optimizer", "sgd")),
        ("learning rate", training["learning_rate"]),
        ("clip norm", config["privacy"].get("clip_norm", 1.0)),
        ("noise multiplier", f"{plan.noise_multiplier:.4g}"),
    ]
    if test_accuracy is not None:
        settings.append(("accuracy on the test file", f"{test_accuracy:.4f}"))
    classes = ", ".join(str(name) for name in data["classes"])
    lines = [
        "---",
        f"base_model: {json.dumps(encoder.name)}",
        "pipeline_tag: text-classification",
        "tags: [differential-privacy]",
        "---",
        f"# {entry.label}",
        "",
        f"A classifier of texts ({classes}), fine-tuned from {encoder.name} with"
        " differential privacy.",
        "",
        "## Privacy",
        entry.statement(),
        "",
        f"The encoder it began from ({encoder.name}), its tokeniser, the list of"
        " classes and the settings below are public and not protected. The statement"
        " is about the rows of the training file.",
        "",
        "## Training",
        "| setting | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in settings),
        "",
        "## Use",
        "```python",
        "from transformers import pipeline",
        "",
        'classify = pipeline("text-classification", "PATH OF THIS FOLDER")',
        'classify("a text")',
        "```",
        "",
    ]
    return "\n".join(lines)
