"""Rows from arrays, memory maps and tables."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from demur.training import as_data, from_batches


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


class Examples:
    """What a torch Dataset is: examples by number."""

    def __init__(self, ragged=False):
        self.ragged = ragged

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i >= 6:
            raise IndexError
        return np.full(2 + self.ragged * i, float(i)), i


class Loader:
    """What a DataLoader is: a dataset, and how its batches are made."""

    def __init__(self, dataset, collate=None):
        self.dataset = dataset
        self.collate_fn = torch_collate if collate is None else collate

    def __iter__(self):
        for start in (0, 2, 4):
            yield tuple(
                np.stack(part)
                for part in zip(*(self.dataset[start + i] for i in (0, 1)), strict=True)
            )


def torch_collate(rows):
    """Stands for torch's own, which is known by its module."""


torch_collate.__module__ = "torch.utils.data._utils.collate"


class Split:
    """What a Dataset of Hugging Face is: a table that knows its formats."""

    column_names = ("x", "y")

    def __len__(self):
        return 6

    def with_format(self, kind):
        assert kind == "arrow"
        return _Whole()


class _Whole:
    def __getitem__(self, rows):
        return table()[1].select(["x", "y"])


@pytest.mark.parametrize(
    "data", [Examples(), Loader(Examples()), from_batches(Loader(Examples()))]
)
def test_datasets_and_batches_of_other_libraries(data):
    rows = as_data(data)
    assert len(rows) == 6
    x, y = rows.take(np.array([4, -1]))
    assert x.tolist() == [[4.0, 4.0], [0.0, 0.0]] and y.tolist() == [4, 0]


def test_a_hugging_face_dataset_is_its_table():
    check(as_data(Split()), table()[0])
    assert set(as_data(Split(), columns=["y"]).columns) == {"y"}


class Transformed(Split):
    """`set_transform`: rows are made when they are read, by code of the caller's."""

    format = {"type": "custom"}


class Stream:
    column_names = ("x",)

    def with_format(self, kind):
        return self


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train": Split(), "test": Split()}, r"pass dataset\['train'\]"),
        (Stream(), "from_batches"),
        (Transformed(), r"pass dataset.map\("),
        (Loader(Examples(), collate=print), "collate_fn of its own"),
        (Loader(iter([])), "iterable dataset"),
        (Examples(ragged=True), "pad texts to a public length"),
        ((row for row in np.eye(3)), "from_batches"),
    ],
)
def test_what_has_no_rows_by_number_is_told_what_to_do(data, words):
    with pytest.raises((TypeError, ValueError), match=words):
        as_data(data)


@pytest.mark.slow
def test_the_datasets_of_torch_itself():
    torch = pytest.importorskip("torch", reason="machine: torch is an extra")
    whole = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(6, 1))
    part = torch.utils.data.Subset(whole, [5, 0])
    (x,) = as_data(torch.utils.data.DataLoader(part, batch_size=2)).columns
    assert x.tolist() == [[5.0], [0.0]]


@pytest.mark.slow
def test_rows_that_a_torch_sampler_leaves_out_are_not_trained_on():
    """Samplers were passed over: who was held out would have been in the model."""
    torch = pytest.importorskip("torch", reason="machine: torch is an extra")
    data = torch.utils.data
    rows = data.TensorDataset(torch.arange(6.0).reshape(6, 1))
    for sampler in (
        data.SubsetRandomSampler([0, 1]),
        data.WeightedRandomSampler([1.0] * 6, 9),
    ):
        with pytest.raises(TypeError, match=r"Subset\(dataset, indices\)"):
            as_data(data.DataLoader(rows, sampler=sampler))
    (x,) = from_batches(data.DataLoader(rows, sampler=data.SubsetRandomSampler([0, 1])))
    assert sorted(x.ravel().tolist()) == [0.0, 1.0]
    for twice in (sampler, data.RandomSampler(rows, replacement=True)):
        with pytest.raises(ValueError, match="drawn with replacement"):
            from_batches(data.DataLoader(rows, sampler=twice))
    assert len(as_data(data.DataLoader(rows, batch_size=2, shuffle=True))) == 6


@pytest.mark.slow
def test_what_numpy_cannot_read_of_torch_is_told():
    torch = pytest.importorskip("torch", reason="machine: torch is an extra")

    data: Any = torch.utils.data

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter([{"x": torch.ones(3)}] * 4)

        def __len__(self):
            return 4

    class Short(data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return [1.0, 2.0][i]

    for given, words in (
        ({"x": torch.ones(2, requires_grad=True)}, r"detach\(\).float\(\)"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, r"detach\(\).float\(\)"),
        (Stream(), "is an iterable dataset"),
        (torch.utils.data.DataLoader(Stream()), r"from_batches\(loader\)"),
        (Short(), "says that it has 5 rows"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            as_data(given)
    assert len(from_batches(torch.utils.data.DataLoader(Stream()))["x"]) == 4
