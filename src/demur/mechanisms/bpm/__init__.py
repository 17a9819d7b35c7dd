"""The Bounded Perturbation Mechanism: its law, its exact sampler, its closed forms."""

from demur.mechanisms.bpm.mechanism import BPM as BPM
