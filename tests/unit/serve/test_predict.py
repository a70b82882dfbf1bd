"""Predictions from files are those of the evaluation, for every kind of image; bad files stop nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx_packages import a_small_package
from pictures import KINDS, Evaluated, evaluated, some_shapes
from PIL import Image

import ddpipe
from ddpipe.__main__ import cli
from ddpipe.errors import NoSuchObject, ParameterError, UnreadableImages
from ddpipe.model.history import NamedModel
from ddpipe.model.package import load_package
from ddpipe.serve.naming import ImageFile, images_at
from ddpipe.serve.predictor import load_model
from ddpipe.sources import Table, open_source
from ddpipe.storage import open_store


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("pngs")
    return evaluated(folder, **KINDS["png of 8 bits"](folder / "raw"))


def predict(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["predict", *arguments], catch_exceptions=False)


QUICK = ("digits",)
"""Kinds of pictures that are tried at every change."""


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_predictions_are_those_of_the_evaluation(tmp_path: Path, kind: str) -> None:
    options = KINDS[kind](tmp_path / "raw")
    made = evaluated(tmp_path, **options)
    model = ddpipe.load_model(made.package)
    files = _contents(made, options)
    answers = dict(zip(files, model.predict(files.values()), strict=True))
    assert answers.keys() == made.probabilities.keys()
    expected = np.array([made.probabilities[name] for name in answers])
    seen = np.array([list(answer.probabilities.values()) for answer in answers.values()])
    np.testing.assert_allclose(seen, expected, atol=1e-4)
    # Also where a class is very improbable; and the images differ for this model.
    np.testing.assert_allclose(np.log(seen), np.log(expected), atol=0.01)
    assert np.log(expected).std(axis=0).max() > 0.1


def _contents(made: Evaluated, options: dict[str, str]) -> dict[str, bytes]:
    """The test images as the source gives them, by sample id."""
    if options["source"] == "folder":
        return {name: (made.raw / name).read_bytes() for name in made.probabilities}
    if options["source"] == "csv":
        return {name: (made.raw / "train" / f"{name}.jpg").read_bytes() for name in made.probabilities}
    source = open_source(options["source"], "", Table())
    return {one.id: source.read(one) for one in source.survey().samples if one.id in made.probabilities}


def test_predicting_imports_neither_torch_nor_what_else_takes_long(pngs: Evaluated) -> None:
    code = (
        "import sys, ddpipe.commands.serving; before = set(sys.modules);"
        f"ddpipe.load_model({pngs.package!r}).predict([{_image(pngs)!r}]);"
        "print({'onnxruntime', 'PIL', 'jinja2'} & before,"
        "{'torch', 'scipy', 'sklearn', 'kfp', 'kubernetes', 'pydicom'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "set()"]


def _image(made: Evaluated) -> str:
    return str(made.raw / next(iter(made.probabilities)))


def test_command_answers_for_folders_files_and_tables(pngs: Evaluated, tmp_path: Path) -> None:
    table = pngs.raw / "even" / "some.csv"
    table.write_text("number,path\n1,./00.PNG\n2,../odd/01.png\n")
    expected = {str(path) for path in pngs.raw.rglob("*.png")}
    lines = predict(pngs.package, str(pngs.raw), "--json").stdout.splitlines()
    assert {json.loads(line)["image"] for line in lines} == expected
    named = predict(pngs.package, str(table), _image(pngs), "--image-column", "path", "--json").stdout
    assert [Path(json.loads(line)["image"]).name for line in named.splitlines()] == [
        *("00.PNG", "01.png"),
        Path(_image(pngs)).name,
    ]


def test_command_shows_text_and_json(pngs: Evaluated) -> None:
    image, expected = _image(pngs), next(iter(pngs.probabilities.values()))
    best = pngs.classes[int(expected.argmax())]
    assert predict(pngs.package, image).stdout == f"{image}: {best} {expected.max():.4f}\n"
    assert predict(pngs.package, image, "--top", "2").stdout.count(".") == image.count(".") + 2
    found = json.loads(predict(pngs.package, image, "--json", "--top", "1").stdout)
    assert (found["answer"], list(found["probabilities"])) == ([best], [best])


def test_unreadable_images_are_listed_and_others_answered(pngs: Evaluated, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    (tmp_path / "cut.png").write_bytes(Path(_image(pngs)).read_bytes()[:200])
    (tmp_path / "good.png").write_bytes(Path(_image(pngs)).read_bytes())
    ended = predict(pngs.package, str(tmp_path))
    assert ended.exit_code == UnreadableImages.exit_code
    assert [line.split(":")[0][len(str(tmp_path)) :] for line in ended.stdout.splitlines()] == [
        *("/bad.png", "/cut.png", "/good.png"),
    ]
    assert "2 of 3 images" in ended.stderr
    assert "bad.png: it is not an image" in ended.stderr


def test_unusual_images_are_counted_in_a_warning(pngs: Evaluated, tmp_path: Path) -> None:
    height, width, _ = load_model(pngs.package).signature.shape
    some_shapes(1, (width // 2, height // 2)).save(tmp_path / "tiny.png")
    some_shapes(2, (4 * width, height)).save(tmp_path / "wide.png")
    some_shapes(3, (width, height), color=False).save(tmp_path / "gray.png")
    some_shapes(4, (width, height)).save(tmp_path / "usual.png")
    stderr = predict(pngs.package, str(tmp_path)).stderr
    assert "1 of 4 images are gray, but the model sees color" in stderr
    assert "1 of 4 images are smaller than the model's" in stderr
    assert "1 of 4 images are of unusual proportions" in stderr


def test_places_without_images_are_listed_and_the_others_answered(pngs: Evaluated, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("path\n")
    places = {
        str(tmp_path): "no name in this folder",
        str(tmp_path / "gone.png"): "there is no such file or folder",
        str(tmp_path / "gone.csv"): "the table cannot be read",
        str(tmp_path / "other.csv"): "it has no column 'name'",
    }
    ended = predict(pngs.package, *places, _image(pngs), "--image-column", "name")
    assert ended.exit_code == UnreadableImages.exit_code
    assert "4 of 5 images" in ended.stderr
    assert ended.stdout.splitlines()[-1].startswith(f"{_image(pngs)}: ")
    for place, seen in places.items():
        assert f"{place}: {seen}" in ended.stderr


def test_one_image_gives_one_prediction_however_it_is_given(pngs: Evaluated) -> None:
    model, path = load_model(pngs.package), Path(_image(pngs))
    expected = model.predict(str(path))
    with Image.open(path) as opened:
        opened.load()
        pixels = np.asarray(opened.convert("RGB"))
        forms = [path, path.read_bytes(), opened, pixels]
        answers = [model.predict(form) for form in forms]
        assert [model.predict([form])[0] for form in forms] == answers
    for answer in answers:
        assert answer.probabilities == pytest.approx(expected.probabilities)
    assert [one.answer for one in model.predict(np.stack([pixels] * 3))] == [expected.answer] * 3
    assert [one.answer for one in model.predict((path, pixels))] == [expected.answer] * 2


def test_gray_pixels_need_no_axis_of_channels(tmp_path: Path) -> None:
    model = load_model(a_small_package(str(tmp_path)).folder.store.uri)
    for shape in ((6, 8), (12, 16)):  # the model's own, and one that is scaled
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        assert model.predict(pixels) == model.predict(pixels[:, :, None])
        assert model.predict(pixels).answer


@pytest.mark.parametrize("wrong", [7, [None], np.zeros((8, 8)), np.zeros((8, 8, 2), np.uint8)], ids=str)
def test_what_is_no_image_is_rejected(tmp_path: Path, wrong: object) -> None:
    model = load_model(a_small_package(str(tmp_path)).folder.store.uri)
    with pytest.raises(ParameterError, match="Pillow image"):
        model.predict(wrong)  # type: ignore[call-overload]


def test_model_is_a_folder_a_uri_or_a_run(pngs: Evaluated, tmp_path: Path, store_uri: str) -> None:
    package, place = Path(pngs.package), open_store(f"{store_uri}/runs/first/model")
    for path in package.iterdir():
        place.write(path.name, path.read_bytes())
    history = NamedModel(open_store(store_uri), "toys")
    history.promote(history.publish(load_package(place.uri), {}), against=None, reason="first")
    for arguments in (
        [place.uri],
        ["first", "--runs", f"{store_uri}/runs"],
        ["toys@champion", "--store", store_uri],
    ):
        assert predict(*arguments, _image(pngs)).exit_code == 0
    refused = predict("second", "--runs", f"{store_uri}/runs", _image(pngs))
    assert refused.exit_code == NoSuchObject.exit_code
    assert "runs/second/model" in refused.stderr


def test_images_of_a_bucket_are_answered(pngs: Evaluated, store_uri: str) -> None:
    store = open_store(f"{store_uri}/some")
    for name in ("a/1.png", "b/2.png", "notes.txt"):
        store.write(name, Path(_image(pngs)).read_bytes())
    answers = load_model(pngs.package).stream(images_at((f"{store_uri}/some",)))
    assert [answer.image for answer in answers] == [f"{store.uri}/a/1.png", f"{store.uri}/b/2.png"]


def test_memory_stays_flat_however_many_images(pngs: Evaluated) -> None:
    """At most a few batches are read before they are used."""
    content, reads, longest = Path(_image(pngs)).read_bytes(), 0, 0

    def read() -> bytes:
        nonlocal reads
        reads += 1
        return content

    answers = load_model(pngs.package).stream(ImageFile(str(number), read) for number in range(1000))
    for used, _ in enumerate(answers):
        longest = max(longest, reads - used)
    assert reads == 1000
    assert longest < 200


def test_older_package_says_that_it_lacks_preprocessing(pngs: Evaluated, tmp_path: Path) -> None:
    model = load_model(pngs.package)
    older = replace(model, signature=replace(model.signature, preprocessing=None))
    with pytest.raises(ParameterError, match="Export it again"):
        older.predict([_image(pngs)])
