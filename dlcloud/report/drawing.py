"""Charts drawn by Vega-Lite: vl-convert, which needs no browser; the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dlcloud.core.errors import RecipeError
from dlcloud.report.charts import TEXT, Chart, Spec
from dlcloud.report.page import themed
from dlcloud.system.files import write_file

VEGA_LITE = "6.1"
HINT = "pip install 'dlcloud[plot]'"
WIDTH_PX = 640
PIXELS_PER_INCH = 300


def bundle(cache: Path) -> str:
    """Return the JavaScript that draws, made once (seconds) and kept in the folder `cache`.

    Raises:
        RecipeError: vl-convert is not installed.
    """
    converter = _converter()
    path = cache / f"vega-{VEGA_LITE}-{converter.__version__}.js"
    if not path.exists():
        write_file(path, converter.javascript_bundle(vl_version=VEGA_LITE))
    return path.read_text("utf-8")


def picture(charts: Sequence[Chart], form: str) -> bytes:
    """Return the charts as one picture for a paper, black on white; `form` is `png` or `svg`.

    Raises:
        RecipeError: vl-convert is not installed.
    """
    converter = _converter()
    spec = _printed(charts)
    if form == "svg":
        return str(converter.vegalite_to_svg(spec, vl_version=VEGA_LITE)).encode()
    return bytes(converter.vegalite_to_png(spec, vl_version=VEGA_LITE, ppi=PIXELS_PER_INCH))


def _printed(charts: Sequence[Chart]) -> Spec:
    panels = [
        {
            **chart.spec,
            "data": {**chart.spec["data"], "name": chart.name},
            "title": {"text": chart.caption, "anchor": "start"},
            "width": WIDTH_PX,
        }
        for chart in charts
    ]
    whole = themed(
        {"vconcat": panels, "resolve": {"scale": {"color": "independent", "shape": "independent"}}},
        text="black",
    )
    config = {**whole["config"], "background": "white", "font": "sans-serif"}
    kept = {name: value for name, value in whole.items() if name not in {"width", "autosize"}}
    return _coloured({**kept, "config": config})


def _coloured(value: Spec) -> Spec:
    """Replace the colour of the page's text, which a picture does not have."""

    def replaced(part: object) -> object:
        if isinstance(part, dict):
            return {name: replaced(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [replaced(inner) for inner in part]
        return "black" if part == TEXT else part

    return {name: replaced(inner) for name, inner in value.items()}


def _converter() -> ModuleType:
    try:
        import vl_convert  # noqa: PLC0415  84 MB that only pictures need
    except ImportError as error:
        raise RecipeError("charts are drawn by vl-convert, which is missing", HINT) from error
    return vl_convert
