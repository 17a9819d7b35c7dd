"""Files of rows: each counted once, whole, and of one width, wherever they lie."""

import os
from pathlib import Path
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from demur.convex import BallPrototypeClassifier, ParquetRows
from demur.convex.rows.arrow import matrix_of
from demur.preprocessing.table_files import TableFile, read_whole, table_files
from demur.training import as_data

RNG = np.random.default_rng(26)
X = RNG.uniform(-0.5, 0.5, (40, 3))
Y = np.arange(40) % 2


def table(rows=slice(None), label=True):
    columns = {name: X[rows, i] for i, name in enumerate("abc")}
    return pa.table(columns | ({"y": Y[rows]} if label else {}))


@pytest.fixture
def part(tmp_path):
    path = tmp_path / "rows" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table(), path)
    return path


def counted(paths, **options):
    """How many rows a head and a training run would see."""
    rows = ParquetRows(paths, **options)
    return sum(rows.row_source().label_counts().values()), len(
        as_data(paths, **options)
    )


# -- counted once ----------------------------------------------------------------------


def hard_link(part):
    os.link(part, part.with_name("again.parquet"))
    return part.parent


def symbolic_link(part):
    part.with_name("again.parquet").symlink_to(part)
    return part.parent


def same_path(part):
    return [part, part.parent / "." / part.name]


def folder_and_file(part):
    return [part.parent, part]


def as_address(part):
    return [str(part), f"file://{part}"]


NAMED_TWICE = [hard_link, symbolic_link, same_path, folder_and_file, as_address]


@pytest.mark.parametrize("name_it", NAMED_TWICE)
def test_a_file_with_two_names_is_one_file(part, name_it):
    """The attack: a link beside a file doubles its rows, at the price of one each."""
    assert counted(part) == (40, 40)
    paths = name_it(part)
    for act in (lambda: ParquetRows(paths).row_source(), lambda: as_data(paths)):
        with pytest.raises(ValueError, match="named twice.*Nothing was spent"):
            act()


def test_the_twin_that_compares_paths_counts_a_hard_link_twice(part):
    def by_path(file):
        return (file.local.resolve(),)

    paths = hard_link(part)
    with mock.patch.object(TableFile, "same_as", by_path):
        assert counted(paths) == (80, 80)


def test_two_files_of_equal_content_are_two_files(part):
    part.with_name("copy.parquet").write_bytes(part.read_bytes())
    assert counted(part.parent) == (80, 80)


# -- whole -----------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path):
    """One bit of one value is flipped, which the format by itself does not show."""
    path = tmp_path / "damaged.parquet"
    plain = {"compression": "none", "use_dictionary": False}
    pq.write_table(table(), path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    place = content.index(np.float64(X[7, 1]).tobytes())
    content[place + 6] ^= 0x10
    path.write_bytes(content)
    return path


def test_a_page_that_fails_its_checksum_is_refused(damaged):
    with pytest.raises(ValueError, match="checksum"):
        as_data(damaged)
    with pytest.raises(ValueError, match="checksum"):
        BallPrototypeClassifier(radius=0.3, epsilon=1.0, delta=1e-6).fit(
            ParquetRows(damaged)
        )
    # The twin reads without a look at the checksums: another value, and no word.
    twin = pq.read_table(damaged)["b"].to_numpy()
    assert twin[7] != X[7, 1] and (np.delete(twin, 7) == np.delete(X[:, 1], 7)).all()


def test_a_file_that_changes_while_it_is_read_is_refused(part):
    (file,) = table_files(part)
    original = TableFile.batches

    def batches(self, *arguments):
        yield from original(self, *arguments)
        os.utime(part, ns=(1, 1))

    with (
        mock.patch.object(TableFile, "batches", batches),
        pytest.raises(ValueError, match="was changed"),
    ):
        read_whole([file], None)


# -- one width -------------------------------------------------------------------------


def lists(first, second):
    return pa.table(
        {
            "e": pa.array([[0.1] * first] * 4),
            "f": pa.array([[0.2] * second] * 4),
            "y": [0, 1, 0, 1],
        }
    )


def test_widths_are_those_of_each_column(tmp_path):
    """2 + 3 and 3 + 2 have one sum: the fifth feature would be two things."""
    pq.write_table(lists(2, 3), tmp_path / "1.parquet")
    pq.write_table(lists(3, 2), tmp_path / "2.parquet")
    head = BallPrototypeClassifier(radius=0.3, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="'e' must have 2 features"):
        head.fit(ParquetRows(tmp_path))
    with pytest.raises(ValueError, match="'e' has lists of different lengths"):
        as_data(tmp_path)
    # The twin compares sums: both batches pass for five features.
    batches = [lists(*w).to_batches()[0] for w in ((2, 3), (3, 2))]
    widths = [matrix_of(b, ["e", "f"], w).shape[1] for b, w in
              zip(batches, ((2, 3), (3, 2)), strict=True)]  # fmt: skip
    assert widths == [5, 5]


# -- wherever they lie -----------------------------------------------------------------


@pytest.fixture
def store():
    """An object store, as fsspec shows it: no inodes, no folders of its own."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


def fill(write):
    for k in range(4):
        write(f"year={2020 + k}/spam={'yes' if k % 2 else 'no'}/part.parquet",
              table(slice(10 * k, 10 * k + 10), label=False))  # fmt: skip
    write("_temporary/part.parquet", table())


def in_memory(store, root):
    def write(name, rows):
        with store.open(f"{root}/{name}", "wb") as file:
            pq.write_table(rows, file)

    fill(write)


def on_disk(root):
    def write(name, rows):
        path = Path(root) / name
        path.parent.mkdir(parents=True)
        pq.write_table(rows, path)

    fill(write)


def test_an_object_store_and_a_disk_give_the_same_rows(tmp_path, store):
    in_memory(store, "/bucket/rows")
    on_disk(tmp_path / "rows")
    columns = ["a", "b", "c", "year"]
    below = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    found = {}
    for name, path, filesystem in (
        ("disk", tmp_path / "rows", None),
        ("subtree", "rows", below),
        ("store", "/bucket/rows", store),
    ):
        data = as_data(path, columns=columns, filesystem=filesystem)
        assert data.columns["year"].tolist() == [2020 + i // 10 for i in range(40)]
        np.testing.assert_array_equal(data.columns["b"], X[:, 1])
        found[name] = data.digest()
        rows = ParquetRows(path, label="spam", filesystem=filesystem)
        source = rows.row_source()
        assert source.columns == ["a", "b", "c"]  # folders' names are no feature
        assert source.label_counts() == {"no": 20, "yes": 20}
        assert rows.features() == ["a", "b", "c"]
    assert len(set(found.values())) == 1


def test_a_head_learns_from_an_object_store(store):
    in_memory(store, "/bucket/rows")
    head = BallPrototypeClassifier(radius=0.3, epsilon=5.0, delta=1e-6)
    head.fit(ParquetRows("/bucket/rows", label="spam", filesystem=store))
    assert head.classes_.tolist() == ["no", "yes"]


def test_an_address_that_is_named_twice_is_refused(store):
    in_memory(store, "/bucket/rows")
    twice = ["/bucket/rows", "/bucket/rows/year=2020/spam=no/part.parquet"]
    with pytest.raises(ValueError, match="named twice"):
        as_data(twice, filesystem=store)


def test_a_subtree_of_a_disk_knows_links_too(part):
    hard_link(part)
    base = str(part.parent.parent)
    below = pyarrow.fs.SubTreeFileSystem(base, pyarrow.fs.LocalFileSystem())
    for filesystem, path in ((below, "rows"), (fsspec.filesystem("file"), part.parent)):
        with pytest.raises(ValueError, match="named twice"):
            table_files(path, filesystem)


def test_a_disk_behind_other_file_systems_knows_links_too(part, monkeypatch):
    """The attack: fsspec's own wrappers, and relative paths, hide that it is a disk."""
    hard_link(part)
    base, disk = str(part.parent.parent), fsspec.filesystem("file")
    kept = {"target_protocol": "file", "cache_storage": base + "/cache"}
    for filesystem, path in (
        (DirFileSystem(base, disk), "rows"),
        (DirFileSystem("rows", DirFileSystem(base, disk)), ""),
        (fsspec.filesystem("simplecache", **kept), str(part.parent)),
        (fsspec.filesystem("filecache", **kept), str(part.parent)),
        (disk, f"file://{part.parent}"),
    ):
        with pytest.raises(ValueError, match="named twice"):
            table_files(path, filesystem)
    monkeypatch.chdir(part.parent)
    with pytest.raises(ValueError, match="named twice"):
        table_files(["part.parquet", "again.parquet"], disk)
    (file,) = table_files("part.parquet", disk)
    assert file.local == part and file.own_schema().names


@pytest.mark.parametrize(
    "path, said",
    [
        ("nowhere://key:hunter2@bucket/rows", "pass a filesystem"),
        ("no/such/folder", "there is no file no/such/folder"),
    ],
)
def test_a_place_that_cannot_be_reached_is_named_without_its_password(path, said):
    with pytest.raises(ValueError, match=said) as raised:
        table_files(path)
    assert "hunter2" not in str(raised.value)


def test_a_missing_partition_value_is_a_missing_label(tmp_path):
    for name in ("kind=0", "kind=1", "kind=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name).mkdir()
        pq.write_table(table(label=False), tmp_path / name / "part.parquet")
    head = BallPrototypeClassifier(radius=0.3, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="missing labels"):
        head.fit(ParquetRows(tmp_path, label="kind"))
