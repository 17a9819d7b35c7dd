"""Rows from arrays, memory maps and tables."""

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from demur.training import as_data


def table(n=6):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(x.reshape(-1), 3),
            "y": np.arange(n),
            "z": pa.array([[float(i), 2.0] for i in range(n)]),
        }
    )


def check(rows, x):
    got = rows.take(np.array([4, 0, -1]))
    np.testing.assert_array_equal(got["x"][:2], x[[4, 0]])
    assert not got["x"][2].any() and got["y"].tolist() == [4, 0, 0]


def test_padding_is_zeros_and_never_the_last_row():
    rows = as_data({"x": np.full((3, 2), 7.0), "y": np.array([1, 2, 3])})
    got = rows.take(np.array([-1, 2]))
    assert got["x"].tolist() == [[0, 0], [7, 7]] and got["y"].tolist() == [0, 3]
    assert rows.columns["y"].tolist() == [1, 2, 3]  # the data itself is untouched


def test_an_arrow_table():
    x, made = table()
    rows = as_data(made)
    assert len(rows) == 6 and rows.columns["z"].shape == (6, 2)
    check(rows, x)
    assert set(as_data(made, columns=["y"]).columns) == {"y"}
    chunked = pa.concat_tables([made.slice(0, 2), made.slice(2)])
    check(as_data(chunked), x)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_table_files(tmp_path, suffix):
    x, made = table()
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pa.parquet.write_table(made, path)
    else:
        pa.feather.write_feather(made, path, compression="uncompressed")
    check(as_data(path), x)
    check(as_data(str(path), columns=["x", "y"]), x)


def test_npz_and_memory_maps(tmp_path):
    x, _ = table()
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(6))
    check(as_data(tmp_path / "rows.npz"), x)
    np.save(tmp_path / "x.npy", x)
    mapped = as_data(tmp_path / "x.npy")
    assert isinstance(mapped.columns, np.memmap)
    np.testing.assert_array_equal(mapped.take(np.array([2])), x[[2]])
    again = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": np.arange(6)}
    check(as_data(again), x)


def test_other_trees():
    pair = as_data((np.eye(3), np.array([1, 2, 3])))
    assert isinstance(pair.take(np.array([0])), tuple)
    assert len(as_data(jnp.zeros((4, 2)))) == 4
    people = pair.take(np.array([[0, 1], [2, -1]]))
    assert people[0].shape == (2, 2, 3) and people[1].tolist() == [[1, 2], [3, 0]]
    assert as_data(pair) is pair


def test_the_digest_sees_every_byte_and_nothing_else(tmp_path):
    x, _ = table()
    first = as_data({"x": x, "y": np.arange(6)}).digest()
    assert as_data({"x": x.copy(), "y": np.arange(6)}).digest() == first
    moved = x.copy()
    moved[5, 2] = np.nextafter(moved[5, 2], np.float32(9))
    for other in (
        {"x": moved, "y": np.arange(6)},
        {"x": x[::-1], "y": np.arange(6)},
        {"x": x.reshape(6, 3, 1), "y": np.arange(6)},
        {"x": x, "z": np.arange(6)},
        {"x": x, "y": np.arange(6, dtype=np.int32)},
    ):
        assert as_data(other).digest() != first
    np.save(tmp_path / "x.npy", x)
    mapped = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": np.arange(6)}
    assert as_data(mapped).digest() == first


def test_a_repr_shows_no_row_and_no_count():
    shown = repr(as_data({"x": np.full((5, 2), 3.25)}))
    assert "3.25" not in shown and "5" not in shown


def with_null():
    return pa.table({"x": pa.array([1.0, None])})


def ragged():
    return pa.table({"x": pa.array([[1.0], [1.0, 2.0]])})


@pytest.mark.parametrize(
    "bad, error",
    [
        ({"x": np.eye(3), "y": np.arange(2)}, ValueError),
        ({}, ValueError),
        (3.0, ValueError),
        ({"x": np.array(["a", "b"])}, TypeError),
        ({"x": np.array([None, 1], dtype=object)}, TypeError),
        (with_null(), ValueError),
        (ragged(), ValueError),
        ("rows.csv", ValueError),
        ("missing.npz", FileNotFoundError),
    ],
)
def test_bad_data_is_a_clear_error(bad, error):
    with pytest.raises(error):
        as_data(bad)
