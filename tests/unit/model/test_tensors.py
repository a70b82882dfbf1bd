"""Files of torch.save of any content: tensors come out, or they are rejected, and no code runs."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from ddpipe.model.tensors import read_tensors


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def compressed(data: bytes) -> bytes:
    """The same archive, compressed as a trap for memory would be."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as plain, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name in plain.namelist():
            out.writestr(name, plain.read(name))
    return file.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("exploded"),))


def test_tensors_are_read() -> None:
    found = read_tensors(saved({"weights": torch.arange(3), "step": 3}))
    assert torch.equal(found["weights"], torch.arange(3))
    assert found["step"] == 3


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "it is empty"),
        (b"weights", "besides tensors"),
        (saved([1])[:-30], "not a file of torch.save"),
        (compressed(saved(torch.zeros(1000))), "it is compressed"),
        (saved({"bomb": Bomb()}), "it holds Python objects"),
        (pickle.dumps({"bomb": Bomb()}), "besides tensors"),
    ],
    ids=["empty", "text", "cut short", "compressed", "objects", "a pickle"],
)
def test_other_file_is_rejected_without_running_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, seen: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=seen) as caught:
        read_tensors(data)
    assert "weights_only" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_shared_and_nested_tensors_are_read() -> None:
    weights = torch.arange(1000.0)
    found = read_tensors(saved({"a": weights, "b": [weights, (weights[:10], {"c": weights})]}))
    assert torch.equal(found["b"][1][1]["c"], weights)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**9),
        torch.empty(10**9, device="meta"),
        torch.ones(1).to_sparse(),
    ],
    ids=["repeated", "without values", "sparse"],
)
def test_small_file_cannot_claim_a_huge_tensor(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="it holds a tensor"):
        read_tensors(saved({"nested": [{"weights": tensor}]}))
