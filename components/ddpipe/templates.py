"""The one Jinja environment: pages and cards are rendered here, every value escaped.

Needs jinja2, which the launcher image does not have: only modules that render import this one.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment(package: str) -> Environment:
    """The templates that lie in a package's folder; a name that a template does not know is an error."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
