"""What every self-contained page is built from: assets, templates, and a policy under which nothing else runs."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from isthmus.units import format_bytes, format_count, format_duration, format_rate

PACKAGE = "isthmus.observe"


def asset(name: str, package: str = PACKAGE) -> str:
    """The text of a file in a package's folder ``assets``."""
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def render_page(
    template: str,
    *,
    style: str,
    script: str,
    data: object,
    values: Mapping[str, Any],
    filters: Mapping[str, Any] | None = None,
    package: str = PACKAGE,
) -> str:
    """One page that fetches nothing.

    Args:
        template: Name of a template that extends ``page.html.j2``.
        style: The page's own style sheet.
        script: The page's own script; uPlot and what ``plots.js`` offers stand before it.
        data: What the script draws, as JSON values; it finds them in the element ``data``.
        values: What the template names.
        filters: Filters of the template besides the usual ones.
        package: Whose assets hold the template; other templates are looked for in this room's.
    """
    environment = _environment(package)
    environment.filters |= dict(filters or {})
    scripts = [asset("uPlot.iife.min.js"), asset("plots.js") + script]
    return environment.get_template(template).render(
        **values,
        data=_script_json(data),
        style=Markup(asset("uPlot.min.css") + style),
        scripts=[Markup(each) for each in scripts],
        policy=_policy(scripts),
    )


def _environment(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _source(name, package)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "bits_per_s": lambda bytes_per_s: format_rate(bytes_per_s * 8),
        "count": format_count,
        "duration": format_duration,
        "date": lambda wall_s: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s)),
        "time": lambda wall_s: time.strftime("%H:%M:%S", time.localtime(wall_s)),
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    return environment


def _source(name: str, package: str) -> str:
    try:
        return asset(name, package)
    except FileNotFoundError:
        return asset(name)


def _script_json(value: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy under which nothing runs but our own scripts, and nothing is fetched."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
