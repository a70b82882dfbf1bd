"""Two processes that promote two versions of a model at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from model_packages import a_package
from samples import a_manifest

from ddpipe.model.history import ModelVersion, NamedModel
from ddpipe.model.package import load_package

PROMOTER = """
import sys
from ddpipe.errors import PromotionLost
from ddpipe.model.history import NamedModel
from ddpipe.storage import open_store
model = NamedModel(open_store(sys.argv[1]), sys.argv[2])
version = model.find(sys.argv[3])
model.history()
print("ready", flush=True)
sys.stdin.readline()
try:
    model.promote(version, against=None, reason="first")
    print("won")
except PromotionLost:
    print("lost")
"""


def a_version(model: NamedModel, folder: Path, classes: tuple[str, ...] = ("ball", "kite")) -> ModelVersion:
    uri = a_package(str(folder / "-".join(classes)), a_manifest(classes=classes))
    return model.publish(load_package(uri), {"run": "runs/first"})


def one_wins(model: NamedModel, folder: Path) -> None:
    """Let both promote, and check that the history has the winner only."""
    versions = [a_version(model, folder), a_version(model, folder, ("a", "b"))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROMOTER, model.store.uri, model.name, one.version],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for one in versions
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]
    assert sorted(answers) == ["lost", "won"], answers
    (promotion,) = model.history().promotions
    assert promotion.version == versions[answers.index("won")].version
