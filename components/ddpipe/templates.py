"""The only Jinja environment: renders HTML reports and model cards, with every value escaped.

Only modules that render import this one: the launcher image has no jinja2.
"""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from PIL.Image import Image


def png_uri(image: Image) -> str:
    """An image as a data URI of a PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def csv_cell(text: str) -> str:
    """A cell of a table for a spreadsheet: what it would take for a formula starts with an apostrophe."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
    return text


def environment(package: str) -> Environment:
    """The templates in a package's folder; an undefined name in a template is an error."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def with_contents(page: str) -> str:
    """A page with links to its sections where it has an empty nav; only templates write headings."""
    titles = re.findall("<h2>(.*?)</h2>", page)
    for number, title in enumerate(titles):
        page = page.replace(f"<h2>{title}</h2>", f'<h2 id="s{number}">{title}</h2>', 1)
    links = "".join(f'<a href="#s{number}">{title}</a>' for number, title in enumerate(titles))
    return page.replace("></nav>", f">{links}</nav>", 1)
