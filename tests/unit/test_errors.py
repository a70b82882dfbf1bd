"""Every error has the four parts, an exit code of its own, and survives the way between processes."""

import inspect
import pickle

import pytest

from ddpipe import errors
from ddpipe.errors import DdpipeError, NoSuchBucket, from_dict, listed, visible

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DdpipeError)]


def a_bucket_error() -> NoSuchBucket:
    return NoSuchBucket(
        what="the store cannot be used", which="s3://nowhere", seen="no such bucket.", do="Create it."
    )


def test_exit_codes_are_unique() -> None:
    codes = [kind.exit_code for kind in TREE]
    assert len(set(codes)) == len(codes)
    assert not {0, 2} & set(codes), "0 is success, 2 is click's own"


def test_the_message_has_four_parts_in_order() -> None:
    assert str(a_bucket_error()) == "the store cannot be used: s3://nowhere: no such bucket. Create it."


def test_an_error_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(a_bucket_error()))  # noqa: S301 - our own bytes
    assert type(again) is NoSuchBucket
    assert again.as_dict() == a_bucket_error().as_dict()
    assert type(from_dict(again.as_dict())) is NoSuchBucket


@pytest.mark.parametrize("name", ["visible", "listed", "DdpipeErr", "OfALaterDdpipe", 5])
def test_a_record_names_an_error_and_nothing_else(name: object) -> None:
    error = from_dict({**a_bucket_error().as_dict(), "error": name})
    assert type(error) is DdpipeError
    assert str(error) == str(a_bucket_error())


def test_many_problems_are_all_counted_but_not_all_shown() -> None:
    text = listed([f"image {n}" for n in range(25)])
    assert text.startswith("25 problems:")
    assert "image 19" in text
    assert "image 20" not in text
    assert "and 5 more" in text


def test_text_from_elsewhere_controls_no_terminal() -> None:
    assert visible("ünïcode, two\r\nlines\tand a tab") == "ünïcode, two\nlines\tand a tab"
    assert visible("\x1b[31mred\x1b[0m") == "red"
    assert visible("a\x1b]0;title\x07b\rc\u202egnp.exe\ud800") == (
        r"a\x1b]0;title\x07b\rc\u202egnp.exe\ud800"
    )
