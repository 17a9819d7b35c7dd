"""Files of parts: back as they were, and on no other model."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import load_part, save_part
from demur.training.finetuning import lora, select
from demur.training.tensor_files import read_tensors, write_tensors

MODEL = {
    "w": jnp.arange(12.0).reshape(4, 3),
    "half": jnp.ones((2, 2), jnp.bfloat16),
    "b": jnp.zeros(3),
}
PARTS = {
    "lora": lora(MODEL, rank=2, alpha=1.0, targets="w", also="b"),
    "select": select(MODEL, "half", "b"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_comes_back_as_it_was(name, tmp_path):
    part, path = PARTS[name], tmp_path / "part.safetensors"
    trained = jax.tree.map(lambda leaf: leaf + 1, part.params)
    save_part(part, trained, path)
    again = load_part(part, path)
    assert jax.tree.structure(again) == jax.tree.structure(trained)
    jax.tree.map(np.testing.assert_array_equal, again, trained)
    assert [a.dtype for a in jax.tree.leaves(again)] == [
        a.dtype for a in jax.tree.leaves(trained)
    ]
    others = MODEL | {"w": MODEL["w"] + (name == "select"), "half": 2 * MODEL["half"]}
    elsewhere = {
        "lora": lora(others, rank=2, alpha=1.0, targets="w", also="b"),
        "select": select(others, "half", "b"),
    }[name]
    with pytest.raises(ValueError, match="another model than this one"):
        load_part(elsewhere, path)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (lora(MODEL, rank=2, alpha=4.0, targets="w", also="b"), "another kind"),
        (lora(MODEL, rank=1, alpha=0.5, targets="w", also="b"), "another kind"),
        (PARTS["select"], "another kind"),
        (lora(MODEL, rank=2, alpha=1.0, targets="w"), "another model"),
    ],
)
def test_a_file_of_another_part_is_refused(part, words, tmp_path):
    """Another scale would load without a murmur, and be another model."""
    save_part(PARTS["lora"], PARTS["lora"].params, tmp_path / "part")
    with pytest.raises(ValueError, match=words):
        load_part(part, tmp_path / "part")


def test_other_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="names of the part"):
        save_part(PARTS["lora"], {}, tmp_path / "part")
    assert not list(tmp_path.iterdir())


def test_arrays_of_every_kind_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.float32(2.0)}
    arrays |= {"c": np.zeros((0, 2), np.float16), "d": np.arange(3)}
    arrays |= {"e": np.ones((2, 2), jnp.bfloat16), "f": np.array([True, False])}
    write_tensors(tmp_path / "file", arrays, {"note": "x"})
    found, texts = read_tensors(tmp_path / "file")
    assert set(found) == set(arrays)
    assert texts == {"note": "x"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def header(facts, body=b"", **more):
    text = json.dumps({"a": facts, **more}).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        header({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}),
        header({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, b"x" * 8),
        header({"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}, b"x" * 8),
        header({"dtype": "PICKLE", "shape": [8], "data_offsets": [0, 8]}, b"x" * 8),
        header({"dtype": "F32"}, b"x" * 8),
        header(3),
    ],
)
def test_a_damaged_file_is_one_clear_error(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file is no safetensors file"):
        read_tensors(tmp_path / "file")
