"""What the images carry: a bill of materials, the licenses, and which known vulnerabilities concern it.

    python tools/supply.py sbom      of the environment that runs it, as CycloneDX: each image has its own
    python tools/supply.py audit     of the locks of the images, to docs/supply.md

Needs nothing but Python for the first, and `uv` beside the interpreter for the second.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "supply.md"
IMAGES = {"launcher": ("launcher",), "predictor": ("predictor",), "trainer": ("torch", "trainer")}
"""The locks from which each image is installed."""

AUDITOR = "pip-audit==2.10.1"
PINNED = re.compile(r"([\w.-]+)==([\w.!+-]+)(?: ; ([^\\]*))?")
LONGEST_NAME = 60  # characters of a license's name; a longer field is the license itself

PLAIN = {
    "Apache 2.0": "Apache-2.0",
    "Apache License Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "BSD License": "BSD",
    "2-clause BSD License": "BSD-2-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
}
"""How one license is spelled that packages spell in several ways."""

PERMITTED = re.compile(
    r"(Apache-2\.0( WITH LLVM-exception)?|MIT(-0|-CMU)?|(0)?BSD(-[23]-Clause)?|BSL-1\.0|CC0-1\.0|ISC|MPL-2\.0"
    r"|PSF-2\.0|Unlicense|Zlib|LicenseRef-NVIDIA-Proprietary)"
)
"""Licenses under which the images may be given on; any other ends the audit."""

UNDECLARED = {
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
}
"""Licenses that a package's metadata do not name; read in the package."""

HEAD = """# Supply chain

Written by `make audit`; do not edit.

Every package of an image is pinned by version and SHA-256 in a lock, and is installed only if they match.
Data sets that ddpipe downloads come over https and are compared with their SHA-256. Each image has its bill
of materials, as CycloneDX, in `/usr/share/doc/ddpipe/sbom.json`, beside LICENSE and NOTICE. The packages of
the base image are Debian's: scanners of images read them. `make images` resolves the base to its digest once,
builds all images on it, and prints it; `make images BASE=python:3.11-slim@sha256:…` builds on it again.
"""


def license_of(found: Distribution) -> str:
    """The license that a package declares; empty if it names none."""
    known, text = found.metadata, found.metadata.get("License") or ""
    classified = [
        name.rpartition(":: ")[2] for name in known.get_all("Classifier", []) if "License ::" in name
    ]
    short = text if len(text) < LONGEST_NAME and "\n" not in text and text != "Dual License" else ""
    names = (
        [known.get("License-Expression") or short] if known.get("License-Expression") or short else classified
    )
    return UNDECLARED.get(found.name, " OR ".join(PLAIN.get(name, name) for name in names))


def sbom() -> dict[str, Any]:
    """The installed packages, as a CycloneDX document that the same packages make again."""
    found = {one.name.lower(): one for one in distributions()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": one.name,
                "version": one.version,
                "purl": f"pkg:pypi/{name.replace('_', '-')}@{one.version}",
                "licenses": [{"license": {"name": license_of(one)}}] if license_of(one) else [],
            }
            for name, one in sorted(found.items())
        ],
    }


def locked() -> dict[str, dict[str, str]]:
    """The version of each package in the images, which are Linux, and the image of each that has it."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for image, locks in IMAGES.items():
        for lock in locks:
            for name, version, marker in PINNED.findall((ROOT / f"requirements-{lock}.txt").read_text()):
                if "== 'win32'" not in marker:
                    found[name][image] = version
    return found


def vulnerabilities() -> Iterator[str]:
    """What is known of each lock, in a line or several."""
    for lock in sorted({lock for locks in IMAGES.values() for lock in locks}):
        file = str(ROOT / f"requirements-{lock}.txt")
        uv = str(Path(sys.executable).with_name("uv"))
        asked = ["--requirement", file, "--no-deps", "--disable-pip", "--format", "json"]
        done = subprocess.run(
            [uv, "tool", "run", AUDITOR, *asked], capture_output=True, text=True, check=False
        )
        try:
            answers = json.loads(done.stdout)["dependencies"]
        except ValueError:
            yield f"`{lock}`: not checked: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:200]}"
            continue
        known = [one for one in answers if "skip_reason" not in one]
        found = [f"{one['name']} {one['version']}: {bad['id']}" for one in known for bad in one["vulns"]]
        if unknown := len(answers) - len(known):
            yield f"`{lock}`: {unknown} packages not checked: the index within reach has no advisories"
        yield from (f"`{lock}`: {bad}" for bad in found)
        if known and not found:
            yield f"`{lock}`: none known in {len(known)} packages"


def licenses(packages: Mapping[str, object]) -> dict[str, list[str]]:
    """The packages under each license."""
    found = defaultdict(list)
    for name in sorted(packages):
        try:
            found[license_of(distribution(name)) or "not named"].append(name)
        except PackageNotFoundError:
            found["not installed here"].append(name)
    return dict(found)


def audit() -> int:
    """Write the page; how many licenses are not among the permitted ones."""
    packages = locked()
    by_license = licenses(packages)
    counted = [f"{sum(image in where for where in packages.values())} in the {image}" for image in IMAGES]
    lines = [HEAD, "## Known vulnerabilities", ""]
    lines += [f"- {line}" for line in vulnerabilities()]
    lines += ["", "## Licenses", "", f"{len(packages)} packages: {', '.join(counted)}.", ""]
    lines += ["| license | packages |", "|---|---|"]
    lines += [f"| {name} | {', '.join(names)} |" for name, names in sorted(by_license.items())]
    PAGE.write_text("\n".join([*lines, ""]))
    parts = {name: re.split(r" AND | OR ", name) for name in by_license}
    refused = [name for name, found in parts.items() if not all(map(PERMITTED.fullmatch, found))]
    for name in refused:
        sys.stderr.write(f"{name}: {', '.join(by_license[name])}: not among the permitted licenses\n")
    return len(refused)


if __name__ == "__main__":
    if sys.argv[1:] == ["sbom"]:
        sys.stdout.write(json.dumps(sbom(), indent=1))
    else:
        sys.exit(bool(audit()))
