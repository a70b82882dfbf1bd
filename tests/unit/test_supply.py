"""What the images carry is listed, and under licenses that permit to give it on."""

from __future__ import annotations

import re

import supply


def test_the_page_names_every_package_of_the_images_and_its_license() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", supply.PAGE.read_text(), re.MULTILINE)[1:]
    listed = {package: name for name, packages in rows for package in packages.split(", ")}
    assert listed.keys() == supply.locked().keys(), "run `make audit`"
    parts = {part for name in listed.values() for part in re.split(" AND | OR ", name)}
    assert not [part for part in parts if not supply.PERMITTED.fullmatch(part)]


def test_a_bill_of_materials_has_each_installed_package_once() -> None:
    made = supply.sbom()
    packages = [one["purl"] for one in made["components"]]
    assert len(set(packages)) == len(packages)
    assert any(purl.startswith("pkg:pypi/ddpipe@") for purl in packages)
    assert {"license": {"name": "MIT"}} in [one for part in made["components"] for one in part["licenses"]]
