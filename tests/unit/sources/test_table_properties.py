"""Tables: for any file, each image has exactly its own label, or the table is refused."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from samples import an_image

from ddpipe.errors import SourceError
from ddpipe.sources import Table, open_source, table

IMAGES = 6
NAMES = tuple(f"{number}.png" for number in range(IMAGES))
SEPARATORS = (",", ";", "\t", "|")
UNLABELLED = {"", "nan", "na", "null", "none"}

texts = st.text(
    st.sampled_from("ab0 ,;\t|\"'\n\r\0\x0b\x85\ufeffé\u2028\xa0漢") | st.characters(), max_size=6
)
names = st.sampled_from([*NAMES, "0", "7.png"]) | texts
clean = st.text("ab0 ,;|\"'é漢", min_size=1, max_size=6).filter(lambda text: text.strip())


@pytest.fixture(scope="module", autouse=True)
def one_label_in_a_cell() -> Iterator[None]:
    """Names made at random may look like several that are joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "JOINING", "")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images; each example puts its own table next to them."""
    root = tmp_path_factory.mktemp("pictures")
    for number, name in enumerate(NAMES):
        an_image(root / name, seed=number)
    return root


def _labels(folder: Path, data: bytes, table: Table = Table()) -> dict[str, str] | None:  # noqa: B008
    """The class of each image by the name that the table gives it, or None if something is refused."""
    (folder / "train.csv").write_bytes(data)
    try:
        survey = open_source("csv", str(folder), table).survey()
    except SourceError:
        return None
    if survey.problems:
        return None
    return {sample.id: survey.classes[int(str(sample.label))] for sample in survey.samples}


def _written(
    rows: list[list[str]], separator: str = ",", end: str = "\r\n", quoting: int = csv.QUOTE_MINIMAL
) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator, lineterminator=end, quoting=quoting).writerows(rows)
    return file.getvalue()


def _trimmed(text: str) -> str:
    """Without spaces at its ends, of any width; what breaks a line is no space."""
    return text.strip("".join({char for char in text if char == "\t" or category(char) == "Zs"}))


def _is_clean(text: str) -> bool:
    return bool(text) and not any(category(char) in {"Cc", "Cs"} for char in text)


ways = st.tuples(
    st.sampled_from(SEPARATORS),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])


@given(
    st.lists(clean, min_size=IMAGES, max_size=IMAGES),
    st.lists(clean, min_size=2, max_size=2),
    ways,
    encodings,
)
@example(["a"] * 6, ["a;b;c", "d"], (",", "\n", csv.QUOTE_ALL), "utf-8")
@example(["a;;;"] * 6, ["a", "d"], (",", "\r", csv.QUOTE_MINIMAL), "utf-8")
@example(["a"] * 6, ['a"', '"b;"'], (",", "\n", csv.QUOTE_MINIMAL), "utf-8")
def test_a_table_that_is_right_gives_its_labels_however_it_is_written(
    folder: Path, labels: list[str], columns: list[str], way: tuple[str, str, int], encoding: str
) -> None:
    image, label = map(str.strip, columns)
    rows = [columns, *([name, text] for name, text in zip(NAMES, labels, strict=True))]
    assume(image != label)
    assume(not {text.strip().lower() for text in labels} & UNLABELLED)
    # Else another separator is as likely as the true one; then it is refused by the rows' widths.
    assume(way[2] == csv.QUOTE_ALL or not set(SEPARATORS) & set(image + label))
    found = _labels(folder, _written(rows, *way).encode(encoding))
    assert found == dict(zip(NAMES, map(str.strip, labels), strict=True))


@given(
    st.lists(st.tuples(names, texts), max_size=IMAGES + 1),
    st.lists(texts, min_size=2, max_size=3),
    ways,
    encodings,
)
def test_any_cells_are_read_back_exactly_or_refused(
    folder: Path, rows: list[tuple[str, str]], columns: list[str], way: tuple[str, str, int], encoding: str
) -> None:
    extra = [""] * (len(columns) - 2)
    text = _written([columns, *([*row, *extra] for row in rows)], *way)
    found = _labels(
        folder, text.encode(encoding, "surrogatepass"), Table(labels=(_trimmed(columns[1]) or "x",))
    )
    if found is None:
        return
    own = {_trimmed(name): _trimmed(label) for name, label in rows}
    own.pop("", None)
    assert found == own
    assert all(map(_is_clean, own.values()))


@settings(max_examples=150)
@given(
    st.text(st.sampled_from('01.png,;\t|"\n\r\0 ab'), max_size=60)
    | st.lists(
        st.sampled_from([*NAMES, "file", "kind", ",", ";", "\n", "\r\n", '"', "a", "b", " "]), max_size=30
    ).map("".join)
)
@example('file,kind\n0.png,a\n1.png,"\n2.png,a\n"\n3.png,b\n')
def test_any_text_says_what_python_s_own_reader_says_or_is_refused(folder: Path, text: str) -> None:
    found = _labels(folder, text.encode())
    if found is None:
        return
    readings = [_by_python(text, separator) for separator in SEPARATORS]
    assert found in readings


def _by_python(text: str, separator: str) -> dict[str, str] | None:
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error:
        return None
    records = [cells for record in records if any(cells := list(map(_trimmed, record)))]
    width = len(records[0]) if records else 0
    if any(len(cells) != width for cells in records):
        return None
    named = [place for place, name in enumerate(records[0]) if name]
    if len(named) < 2:
        return None
    image, label = named[:2]
    found = Counter(cells[image] for cells in records[1:])
    return (
        {cells[image]: cells[label] for cells in records[1:]} if max(found.values(), default=0) == 1 else None
    )


@given(
    st.binary(max_size=40),
    st.sampled_from([b"", b"file,kind\n", b"file;kind\r\n", b"\xff\xfe", b"\xef\xbb\xbf"]),
)
@example(b"0.png,caf\xc3\xa9\n1.png,caf\xc3\n", b"file,kind\n")
@example(b"0.png,a\x81\n1.png,a\x8d\n", b"file,kind\n")
def test_any_bytes_are_read_without_a_guess_at_a_character_or_refused(
    folder: Path, body: bytes, head: bytes
) -> None:
    found = _labels(folder, head + body) or {}
    assert not any("\ufffd" in label for label in found.values())
    assert not any("Ã" in label for label in found.values())


@given(st.lists(st.integers(-1, 1), min_size=IMAGES, max_size=IMAGES))
def test_a_row_of_another_width_is_refused(folder: Path, more: list[int]) -> None:
    rows = [
        [name, "x", "a"][: 3 + min(0, extra)] + ["b"] * max(0, extra)
        for name, extra in zip(NAMES, more, strict=True)
    ]
    found = _labels(folder, _written([["file", "note", "kind"], *rows]).encode(), Table(labels=("kind",)))
    assert found == (None if any(more) else dict.fromkeys(NAMES, "a"))


@given(st.lists(st.sampled_from(["file", "kind", " kind", "KIND", "", "note"]), min_size=2, max_size=5))
def test_a_column_that_is_there_twice_is_refused(folder: Path, columns: list[str]) -> None:
    rows = [
        [*(NAMES[number] if column == "file" else f"{column.strip()}" for column in columns)]
        for number in range(IMAGES)
    ]
    table = Table(image="file", labels=("kind",))
    found = _labels(folder, _written([columns, *rows]).encode(), table)
    stripped = [column.strip() for column in columns]
    if (
        stripped.count("file") == stripped.count("kind") == 1
        and stripped.count("note") <= 1
        and stripped.count("KIND") <= 1
    ):
        assert found == dict.fromkeys(NAMES, "kind")
    else:
        assert found is None
