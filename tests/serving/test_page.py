"""The page's files hang together: they are served under a strict policy, and everything they refer to exists."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served_models import client_of
from small_models import small_tagger
from starlette.testclient import TestClient

from diffusion_mf.data.corpus import Task
from diffusion_mf.serving.settings import PAGE

HTML = (PAGE / "index.html").read_text(encoding="utf-8")
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(PAGE.glob("*.js"))}
STYLE = (PAGE / "style.css").read_text(encoding="utf-8")
VOID = {"br", "hr", "img", "input", "link", "meta"}


class _Elements(HTMLParser):
    """The elements of a document with their attributes; elements must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        # HTML lets these end by themselves.
        while self.open and self.open[-1] in ("p", "li", "dt", "dd", "option") and self.open[-1] != tag:
            self.open.pop()
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def elements() -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(HTML)
    assert not parser.open
    return parser.found


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of({"pos": small_tagger("mean-field", Task.POS)}, token="a-token-of-sixteen-characters") as client:
        yield client


def test_every_file_is_served_without_a_token_and_under_a_strict_policy(client: TestClient) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    for name in ["", *(path.name for path in PAGE.iterdir() if path.name != "index.html")]:
        response = client.get(f"/{name}")
        assert response.status_code == 200
        assert response.headers["Content-Type"].split(";")[0] == types[Path(name or "index.html").suffix]
        policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert not policy.keys() & {"script-src", "style-src"}  # which would allow more
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


def test_nothing_is_fetched_from_elsewhere_and_nothing_is_inline(elements) -> None:
    for name, text in {**SCRIPTS, "style.css": STYLE, "index.html": HTML}.items():
        addresses = set(re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"'`)]*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
    assert "@import" not in STYLE
    assert not re.search(r"url\((?!#)", STYLE)
    for tag, attributes in elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or attributes.get("src")
        assert tag != "style"


def test_files_that_are_referred_to_exist(elements) -> None:
    for tag, attributes in elements:
        if tag in ("link", "script", "img"):
            assert (PAGE / str(attributes.get("href") or attributes.get("src"))).is_file()
    for text in SCRIPTS.values():
        for names, source in re.findall(r"import \{([^}]+)\} from \"\./([\w.]+)\"", text):
            exported = set(re.findall(r"export (?:async )?(?:function|const|class) (\w+)", SCRIPTS[source]))
            assert {name.strip() for name in names.split(",") if name.strip()} <= exported


def test_identifiers_are_unique_and_all_that_are_used_exist(elements) -> None:
    counts = Counter(str(attributes["id"]) for _, attributes in elements if "id" in attributes)
    assert set(counts.values()) == {1}
    used = set()
    for text in SCRIPTS.values():
        used |= set(re.findall(r"(?:\$|getElementById|\bon)\(\s*\"([\w-]+)\"", text))
    for _, attributes in elements:
        for name in ("for", "aria-labelledby", "aria-controls", "aria-describedby"):
            used |= set((attributes.get(name) or "").split())
    assert len(used) > 40
    assert used <= set(counts)
    # What no script and no style asks for is forgotten.
    everything = "".join((*SCRIPTS.values(), STYLE))
    forgotten = [
        name for name in counts if name not in used and f'"{name}"' not in everything and f"#{name}" not in HTML
    ]
    assert not forgotten


def test_controls_have_names(elements) -> None:
    labelled = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    for tag, attributes in elements:
        if tag in ("input", "select", "textarea") and attributes["id"] not in labelled:
            # Inside of its label.
            before = HTML[: HTML.index(f'id="{attributes["id"]}"')]
            assert before.rfind("<label") > before.rfind("</label")
        assert tag != "img" or "alt" in attributes


def test_scripts_can_be_parsed() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, which would parse the page's scripts")
    for name, text in SCRIPTS.items():
        done = subprocess.run(
            [node, "--check", "--input-type=module", "-"], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_colours_keep_their_contrast() -> None:
    """Text on the tints of all labels, in both themes: WCAG's AA asks for 4.5."""
    colours = [
        (int(hue), float(chroma)) for hue, chroma in re.findall(r"\.k[\w-]+ \{ --h: (\d+); --c: ([\d.]+);", STYLE)
    ]
    assert len(colours) == 19
    colour = r"oklch\(([\d.]+) calc\(var\(--c\) \* ([\d.]+)\) var\(--h\)\)"
    tints, texts = (
        re.findall(rf"--{name}: light-dark\({colour}, {colour}\)", STYLE)[0] for name in ("tint", "on-tint")
    )
    for hue, chroma in colours:
        for theme in (0, 2):
            lights = [_luminance(float(each[theme]), chroma * float(each[theme + 1]), hue) for each in (tints, texts)]
            assert (max(lights) + 0.05) / (min(lights) + 0.05) >= 4.5


def _luminance(lightness: float, chroma: float, hue: float) -> float:
    """Relative luminance of an OKLCH colour, by way of LMS."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short
    red, green, blue = (min(1.0, max(0.0, each)) for each in (red, green, blue))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
