"""The README's command for one's own images, on photographs, from the folder to the exported model."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiles import tiles

from ddpipe.model.package import load_package

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_command_of_the_readme_exports_a_model_of_photographs(tmp_path: Path) -> None:
    """It asks nothing: its standard input is closed."""
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^ddpipe run photos --run first$", readme, re.MULTILINE)
    tiles(tmp_path / "photos", 40)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "found in photos: 80 images, 2 classes, 200 × 160, RGB" in done.stderr  # noqa: RUF001
    model = re.search(r"^model +(\S+)$", done.stdout, re.MULTILINE)
    assert model
    package = load_package(str(tmp_path / model[1]))
    assert package.metrics.scores["accuracy"].value >= 0.9, "any method separates a temple from a flower"
    assert any("rough guess" in warning for warning in package.metrics.warnings)
    assert package.lineage["checks"]["largest_probability_difference"] <= 1e-3
    wrong = package.metrics.samples - sum(
        row[place] for place, row in enumerate(package.metrics.confusion_matrix)
    )
    shown = re.findall(r"^  \S+\.jpg +expected \w+, predicted \w+ \(probability", done.stdout, re.MULTILINE)
    assert len(shown) == min(wrong, 3)
