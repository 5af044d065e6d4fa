"""The page in a browser: Playwright drives Debian's Chromium against a server of small models."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright", reason="the browser tests of the page need playwright: pip install playwright")

import uvicorn
from playwright.sync_api import sync_playwright
from served_models import application
from small_models import small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import FileFormat, read_source
from diffusion_mf.data.label_schemes import LabelScheme, check_sequence

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="the browser tests of the page need Chromium: apt-get install chromium"
)

TEXT = "Ada Byron sings in Oslo. Eve sings for Oslo.\n\nThe royal choir of Oslo left."
TOKEN = "a-token-of-sixteen-characters-or-more"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
RECALL = {"width": 16, "heads": 2, "layers": 1, "time_width": 8, "recall": 1}
UNIT = "li[data-sentence='{}'] button.unit[data-unit='{}']"


def serve(**settings: Any) -> Iterator[str]:
    taggers = {
        "ner": small_tagger("diffusion-mf", Task.NER, has_complete_labels=True),
        "names": small_tagger("mean-field", Task.NER, seed=2, has_complete_labels=True),
        "pos": small_tagger("diffusion-mf", Task.POS),
        "words": small_tagger("lcrf", Task.SEG_POS, has_complete_labels=True),
        "recalling": small_tagger("diffusion-mf", Task.NER, has_complete_labels=True, settings={"denoiser": RECALL}),
    }
    config = uvicorn.Config(application(taggers, **settings), port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    yield from serve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as started:
        # Chromium refuses to sandbox itself where tests run as root.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end, nothing must have gone wrong in it, and nothing have been fetched from elsewhere."""
    problems: list[str] = []
    addresses: list[str] = []
    contexts = []

    def open_it(
        text: str | None = TEXT, *, model: str = "ner", at: str = address, token: str = "", **options: Any
    ) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(at)
        for attempt in [f"{token}?", token] if token else []:
            page.fill("#token", attempt)
            page.keyboard.press("Enter")
            if attempt != token:
                page.wait_for_selector("#token-wrong:not([hidden])")
        page.wait_for_selector("#model option", state="attached")
        if text is not None:
            page.select_option("#model", model)
            page.fill("#text", text)
            page.click("#label")
            page.wait_for_selector("#ribbons svg")
            idle(page)
        return page

    open_it.problems = problems  # type: ignore[attr-defined]
    yield open_it
    for context in contexts:
        context.close()
    assert not problems
    assert all(each.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:")) for each in addresses)


def idle(page: Any) -> None:
    page.wait_for_function("() => !document.body.classList.contains('busy')")


def shown(page: Any) -> list[list[tuple[str, str]]]:
    """Units and kinds of every sentence, as they are seen."""
    return page.eval_on_selector_all(
        "#sentences > li",
        """lines => lines.map(line => [...line.querySelector(".line").querySelectorAll(".unit")].map(
            unit => [unit.querySelector(".word").textContent, unit.closest(".item").dataset.kind]))""",
    )


def kind_of(label: str) -> str:
    return "none" if label == "O" else label.split("-")[-1]


def other_kind(page: Any, sentence: int, unit: int, kinds: tuple[str, ...] = ("PER", "LOC", "ORG")) -> str:
    """A kind that a unit does not have."""
    return next(kind for kind in kinds if kind != shown(page)[sentence][unit][1])


def check_accessible(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe()
    found = axe.run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")] == []


def test_text_is_labelled_and_its_denoising_shown(open_page: Any) -> None:
    page = open_page()
    assert [[unit for unit, _ in line] for line in shown(page)] == [
        ["Ada", "Byron", "sings", "in", "Oslo", "."],
        ["Eve", "sings", "for", "Oslo", "."],
        ["The", "royal", "choir", "of", "Oslo", "left", "."],
    ]
    kinds = {kind for line in shown(page) for _, kind in line} - {"none"}
    entries = page.locator("#legend button")
    assert {entries.nth(index).inner_text().split()[0] for index in range(entries.count())} == kinds
    assert page.locator("li.paragraph").count() == 1
    # The slider goes from noise, where nothing is decided, to the labels.
    pills = page.locator("#ribbons .pill")
    assert pills.count() == 6
    last = pills.all_inner_texts()
    page.fill("#call", "0")
    assert set(pills.all_inner_texts()) == {"?"}
    page.focus("#call")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#call", "aria-valuetext").startswith("call 1 of ")
    assert "?" not in pills.all_inner_texts()
    page.keyboard.press("End")
    assert pills.all_inner_texts() == last
    page.locator("#ribbons .column").nth(4).hover()
    assert page.inner_text("#story").startswith("“Oslo” starts with all ")
    page.click(UNIT.format(2, 0))
    page.wait_for_function("() => document.querySelectorAll('#ribbons .pill').length === 7")


def test_a_label_is_fixed_by_mouse_and_the_rest_follows(open_page: Any) -> None:
    page = open_page()
    before = shown(page)
    wanted = other_kind(page, 0, 4)
    page.click(UNIT.format(0, 4))
    start = page.eval_on_selector_all(".unit.selected", "units => units.map(unit => +unit.dataset.unit)")
    page.wait_for_selector("#editor:not([hidden])")
    with page.expect_request(lambda each: "clamps" in (each.post_data or "") and "scores" in each.post_data) as request:
        page.click(f"#label-options .option:has-text('{wanted}')")
    page.wait_for_selector(".item.flash")
    assert request.value.post_data_json["clamps"] == [[{"units": [start[0], start[-1] + 1], "type": wanted}]]
    idle(page)
    assert shown(page)[0][4] == ["Oslo", wanted]
    assert shown(page)[1:] == before[1:]
    assert page.inner_text("#counter").startswith("1 fix")
    assert page.locator("#log > li").count() == 1
    assert f"→ {wanted}" in page.inner_text("#log")
    assert page.evaluate("document.activeElement.dataset.unit") == "4"
    page.click("#undo")
    idle(page)
    assert shown(page) == before
    assert page.inner_text("#counter") == "0 fixes"
    page.click("#redo")
    idle(page)
    assert shown(page)[0][4] == ["Oslo", wanted]
    page.click("#remove-fix")
    idle(page)
    assert shown(page) == before


def test_labels_and_spans_are_fixed_by_keyboard_alone(open_page: Any) -> None:
    page = open_page()
    before = shown(page)
    page.focus("#threshold")
    while page.evaluate("!document.activeElement.closest('#sentences')"):
        page.keyboard.press("Tab")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".unit.selected").all_inner_texts()[2].startswith("sings")
    page.keyboard.type("or")
    assert page.evaluate("document.activeElement.id") == "label-input"
    page.keyboard.press("Enter")
    idle(page)
    page.wait_for_function("() => document.activeElement.closest('#sentences') !== null")
    assert [kind for _, kind in shown(page)[0][:3]] == ["ORG"] * 3
    assert (
        page.locator(UNIT.format(0, 0)).locator("xpath=ancestor::*[contains(@class, 'item')]").locator(".unit").count()
        == 3
    )
    page.keyboard.press("Delete")
    page.wait_for_function("() => document.querySelector('#counter').textContent.includes('1 fix')")
    idle(page)
    assert [kind for _, kind in shown(page)[0][:3]] == ["none"] * 3
    page.keyboard.press("ArrowDown")
    page.keyboard.press("=")
    page.wait_for_function("() => document.querySelector('#counter').textContent.includes('1 confirmed')")
    idle(page)
    assert shown(page)[1] == before[1]
    for _ in range(3):
        page.keyboard.press("Control+z")
        idle(page)
    assert shown(page) == before
    assert page.is_disabled("#undo")


ASKS = """() => {
  const event = new Event("beforeunload", {cancelable: true});
  window.dispatchEvent(event);
  return event.defaultPrevented;
}"""


def fix_label(page: Any, sentence: int, unit: int) -> str:
    """Give a unit another label, and say which."""
    wanted = other_kind(page, sentence, unit)
    page.click(UNIT.format(sentence, unit))
    page.click(f"#label-options .option:has-text('{wanted}')")
    page.wait_for_function("() => document.querySelector('#counter').textContent.startsWith('1 fix')")
    idle(page)
    return wanted


def test_no_step_loses_fixes(open_page: Any) -> None:
    page = open_page()
    fix_label(page, 0, 4)
    seen = shown(page)
    file = {"name": "a.conllu", "mimeType": "", "buffer": FILES["a.conllu"].encode()}
    steps: list[Callable[[], Any]] = [
        lambda: page.click("#label"),
        lambda: page.click("#example"),
        lambda: page.set_input_files("#file", file),
        lambda: page.select_option("#model", "pos"),
        lambda: page.select_option("#model", "words"),
    ]
    for step in steps:
        step()
        page.wait_for_selector("#notice:not([hidden])")
        idle(page)
        notice = page.inner_text("#notice")
        assert "1 label that you set" in notice
        assert "Undo brings back what was here before" in notice
        assert page.inner_text("#counter") == "0 fixes"
        assert page.evaluate(ASKS)  # Undo would not outlive the page
        after, source = shown(page), page.inner_text("#source")
        assert after != seen
        page.click("#undo")
        idle(page)
        assert shown(page) == seen
        assert page.input_value("#model") == "ner"
        assert page.input_value("#text") == TEXT
        assert page.inner_text("#counter").startswith("1 fix")
        assert page.inner_text("#source") == ""
        assert page.locator("#log > li").count() == 1
        assert page.is_hidden("#notice")
        page.click("#redo")
        idle(page)
        assert (shown(page), page.inner_text("#source")) == (after, source)
        page.click("#undo")
        idle(page)
    # What was labelled again can be corrected, and each step be taken back.
    page.select_option("#model", "names")
    idle(page)
    assert page.is_hidden("#notice")  # this model has the label, too
    page.click("#undo")
    idle(page)
    assert page.input_value("#model") == "ner"
    page.click("#undo")
    idle(page)
    assert page.inner_text("#counter") == "0 fixes"
    assert page.is_disabled("#undo")


def test_the_browser_asks_before_fixes_are_lost_with_the_page(open_page: Any) -> None:
    page = open_page()
    assert not page.evaluate(ASKS)
    fix_label(page, 0, 4)
    assert page.evaluate(ASKS)
    with page.expect_download():
        page.click("#export button")
    idle(page)
    assert not page.evaluate(ASKS)
    page.click("#label")
    page.wait_for_function("() => document.querySelector('#counter').textContent === '0 fixes'")
    idle(page)
    assert not page.evaluate(ASKS)
    page.click("#undo")
    idle(page)
    assert not page.evaluate(ASKS)
    page.click("#undo")
    idle(page)
    assert not page.evaluate(ASKS)


def test_a_span_is_dragged_and_its_ends_moved(open_page: Any) -> None:
    page = open_page()
    first, last = page.locator(UNIT.format(2, 0)), page.locator(UNIT.format(2, 2))
    first.hover()
    page.mouse.down()
    last.hover()
    page.mouse.up()
    assert page.locator(".unit.selected").count() == 3
    page.click("#end-earlier")
    assert page.inner_text("#editor-heading") == "The royal"
    page.click("#label-options .option:has-text('ORG')")
    idle(page)
    assert [kind for _, kind in shown(page)[2][:2]] == ["ORG", "ORG"]
    assert (
        page.locator(UNIT.format(2, 0)).locator("xpath=ancestor::*[contains(@class, 'item')]").locator(".unit").count()
        == 2
    )


def test_the_next_most_uncertain_label_is_the_least_certain_of_all(open_page: Any) -> None:
    page = open_page(model="pos")
    page.fill("#threshold", "100")
    scores = page.evaluate(
        """async text => {
          const body = JSON.stringify({model: "pos", texts: [text], scores: true});
          const answer = await fetch("tag", {method: "POST", headers: {"Content-Type": "application/json"}, body});
          return (await answer.json()).texts[0].sentences.map(({scores}) => scores);
        }""",
        TEXT,
    )
    places = sorted(((score, (line, unit)) for line, row in enumerate(scores) for unit, score in enumerate(row)))
    page.click("#next")
    for _, (line, unit) in places[:3]:
        place = "[+document.activeElement.closest('li').dataset.sentence, +document.activeElement.dataset.unit]"
        assert page.evaluate(place) == [line, unit]
        page.keyboard.press("]")
    page.keyboard.press("[")
    assert page.evaluate(place) == list(places[2][1])


def test_the_list_of_labels_has_the_probability_that_the_text_has(open_page: Any) -> None:
    page = open_page(model="pos")
    for unit in range(3):
        page.click(UNIT.format(0, unit))
        page.wait_for_selector("#label-options .option.current .score:not(:empty)")
        chosen = page.inner_text("#label-options .option.current .score")
        assert f" {chosen}" in page.inner_text("#editor-facts")
        scores = [int(each.split()[0]) for each in page.locator("#label-options .score").all_inner_texts()]
        assert sum(scores) == pytest.approx(100, abs=len(scores))
        page.keyboard.press("Escape")


def test_a_label_is_applied_to_all_occurrences(open_page: Any) -> None:
    page = open_page()
    wanted = other_kind(page, 0, 4)
    page.click(UNIT.format(0, 4))
    # The model may see it inside of a longer span.
    while not page.inner_text("#editor-heading").startswith("Oslo"):
        page.click("#start-later")
    while page.inner_text("#editor-heading") != "Oslo":
        page.click("#end-earlier")
    page.click(f"#label-options .option:has-text('{wanted}')")
    idle(page)
    assert page.inner_text("#apply-all") == "Apply to all 3 occurrences"
    page.click("#apply-all")
    idle(page)
    found = [kind for line in shown(page) for unit, kind in line if unit == "Oslo"]
    assert found == [wanted] * 3
    assert page.inner_text("#counter").startswith("2 fixes · 3 labels set")
    page.click("#undo")
    idle(page)
    assert page.inner_text("#counter").startswith("1 fix")


def test_occurrences_inside_of_longer_spans_of_the_label_are_left_alone(open_page: Any) -> None:
    page = open_page("Ada Byron sings. Byron sings. The choir of Byron left.")
    page.click(UNIT.format(0, 0))
    page.click(UNIT.format(0, 1), modifiers=["Shift"])
    page.click("#label-options .option:has-text('PER')")
    idle(page)
    page.click(UNIT.format(1, 0))
    while page.inner_text("#editor-heading") != "Byron":
        page.click("#end-earlier")
    page.click("#label-options .option:has-text('PER')")
    idle(page)
    assert page.inner_text("#apply-all") == "Apply to all 3 occurrences"
    page.keyboard.press("*")
    page.wait_for_function("() => document.querySelector('#log').textContent.includes('all 3 occurrences')")
    idle(page)
    spans = page.eval_on_selector_all(
        ".item[data-kind='PER']",
        "items => items.map(item => [...item.querySelectorAll('.word')].map(word => word.textContent).join(' '))",
    )
    assert spans.count("Ada Byron") == 1
    assert spans.count("Byron") == 2
    assert page.is_hidden("#apply-all")


def test_a_model_that_recalls_labels_the_whole_document_around_a_fix(open_page: Any) -> None:
    page = open_page(model="recalling")
    with page.expect_request(lambda each: "clamps" in (each.post_data or "") and "scores" in each.post_data) as request:
        page.click(UNIT.format(0, 4))
        page.click(f"#label-options .option:has-text('{other_kind(page, 0, 4)}')")
    body = request.value.post_data_json
    assert len(body["sentences"]) == 3
    assert body["documents"] == [1, 1, 1]
    assert [clamp is None for clamp in body["clamps"]] == [False, True, True]


def test_the_keyboard_leads_from_the_input_to_the_labels_and_to_their_stories(open_page: Any) -> None:
    page = open_page(None)
    page.fill("#text", TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => document.activeElement.classList.contains('unit')")
    idle(page)
    page.wait_for_function("() => document.querySelector('#story').textContent.startsWith('“Ada” starts with all ')")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#story").startswith("“Byron” starts with all ")
    page.keyboard.press("=")
    page.wait_for_function("() => document.querySelector('#story').textContent.includes('you have fixed it')")
    page.focus("#go-to-story")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Byron: ")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.unit") == "1"


def test_two_models_are_compared_and_both_hear_of_fixes(open_page: Any) -> None:
    page = open_page()
    page.select_option("#compare", "names")
    page.wait_for_selector(".line.other")
    idle(page)
    assert [page.inner_text("#head-first"), page.inner_text("#head-second")] == ["ner", "names"]
    assert "They agree on" in page.inner_text("#agreement")
    wanted = other_kind(page, 1, 0)
    page.click(UNIT.format(1, 0))
    page.click(f"#label-options .option:has-text('{wanted}')")
    idle(page)
    assert shown(page)[1][0][1] == wanted
    beside = page.locator("li[data-sentence='1'] .other .item").first
    assert beside.get_attribute("data-kind") == wanted
    page.select_option("#model", "names")
    idle(page)
    assert shown(page)[1][0][1] == wanted  # a fix stays with another model that has the label
    page.select_option("#model", "words")
    idle(page)
    assert [unit for unit, _ in shown(page)[0][:4]] == ["A", "d", "a", "B"]
    page.click(UNIT.format(0, 1))
    page.click(UNIT.format(0, 2), modifiers=["Shift"])
    page.click("#label-options .option:has-text('VV')")
    idle(page)
    assert [kind for _, kind in shown(page)[0][1:3]] == ["VV", "VV"]


FORMATS = (FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL, FileFormat.DOCCANO, FileFormat.LABEL_STUDIO)


@pytest.mark.parametrize("model", ["ner", "pos"])
def test_what_is_seen_is_exported(open_page: Any, tmp_path: Path, model: str) -> None:
    page = open_page(model=model)
    wanted = "LOC" if model == "ner" else "VERB"
    page.click(UNIT.format(1, 2))
    page.click(f"#label-options .option:has-text('{wanted}')")
    idle(page)
    seen = shown(page)
    for file_format in FORMATS:
        page.select_option("#export-format", str(file_format))
        with page.expect_download() as download:
            page.click("#export button")
        path = tmp_path / f"{file_format}-{download.value.suggested_filename}"
        download.value.save_as(path)
        idle(page)
        if file_format in (FileFormat.DOCCANO, FileFormat.LABEL_STUDIO):
            value = json.loads(path.read_text(encoding="utf-8"))
            text = value["text"] if file_format is FileFormat.DOCCANO else value[0]["data"]["text"]
            assert text == TEXT
            continue
        if model == "ner" and file_format is FileFormat.CONLLU:
            rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
            found = [[row[1], kind_of(row[9].removeprefix("Label="))] for row in rows]
            assert found == [pair for line in seen for pair in line]
            continue
        sentences = list(read_source(path, file_format).sentences)
        assert [list(sentence.units) for sentence in sentences] == [[unit for unit, _ in line] for line in seen]
        for sentence, line in zip(sentences, seen, strict=True):
            assert [kind_of(label) for label in sentence.labels or ()] == [kind for _, kind in line]
            if model == "ner":
                check_sequence(sentence.labels, LabelScheme.BMES)


def test_all_that_can_be_labelled_can_be_exported(open_page: Any) -> None:
    for at in serve(body_bytes=4_000, request_units=500):
        page = open_page("天气" * 240, model="words", at=at)
        for with_confidence in (False, True):
            page.set_checked("#export-scores", with_confidence)
            page.select_option("#export-format", "jsonl")
            with page.expect_request("**/write") as request, page.expect_download() as download:
                page.click("#export button")
            assert len(request.value.post_data_buffer) > 4_000
            assert ("scores" in request.value.post_data_json["sentences"][0]) is with_confidence
            assert download.value.suggested_filename == "labelled.jsonl"
            idle(page)
        assert page.is_hidden("#problem")


FILES = {
    "a.conllu": "1\tAda\t_\t_\t_\t_\t_\t_\t_\t_\n2\tsings\t_\t_\t_\t_\t_\t_\t_\t_\n\n",
    "a.tsv": "Ada\tB-PER\nsings\tO\n\n",
    "a.jsonl": '{"units": ["Ada", "sings"]}\n',
    "doccano.jsonl": '{"text": "Ada sings", "label": []}\n',
    "a.json": '[{"data": {"text": "Ada sings"}}]',
    "a.txt": "Ada sings",
}


def test_files_of_all_formats_are_opened_and_dropped(open_page: Any) -> None:
    page = open_page(None)
    for name, contents in FILES.items():
        page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": contents.encode()})
        page.wait_for_function("name => document.querySelector('#source').textContent.startsWith(name)", arg=name)
        idle(page)
        assert [[unit for unit, _ in line] for line in shown(page)] == [["Ada", "sings"]]
    drop = """contents => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([contents], "dropped.conllu"));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop, FILES["a.conllu"])
    page.wait_for_function(
        "() => document.querySelector('#source').textContent.startsWith('dropped.conllu, read as conllu')"
    )
    assert page.is_hidden("#problem")
    idle(page)
    page.evaluate(
        drop.replace("document.body", "transfer.items.add(new File(['?'], 'other.txt'));\ndocument.body"),
        FILES["a.conllu"],
    )
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == "Only dropped.conllu was opened; drop one file at a time."


def test_an_error_is_shown_and_nothing_is_lost(open_page: Any) -> None:
    page = open_page()
    before = shown(page)
    page.set_input_files("#file", {"name": "bad.conllu", "mimeType": "", "buffer": b"1\tAda\n"})
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem").startswith("bad.conllu, line 1: ")
    assert shown(page) == before
    # The browser itself says that the answer was no success.
    assert [each for each in open_page.problems if "422" not in each] == []
    open_page.problems.clear()


def test_a_token_is_asked_for_once(open_page: Any) -> None:
    for at in serve(token=TOKEN):
        page = open_page(at=at, token=TOKEN)
        assert len(shown(page)) == 3
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        assert not page.is_visible("#token")
    assert [each for each in open_page.problems if "401" not in each] == []
    open_page.problems.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_is_accessible_in_every_theme_and_size(
    open_page: Any, scheme: str, viewport: dict[str, int]
) -> None:
    page = open_page(color_scheme=scheme, viewport=viewport, bypass_csp=True, has_touch=viewport is PHONE)
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (max(red, green, blue) < 80) if scheme == "dark" else (min(red, green, blue) > 200)
    check_accessible(page)
    wanted = other_kind(page, 0, 4)
    (page.tap if viewport is PHONE else page.click)(UNIT.format(0, 4))
    page.wait_for_selector("#editor:not([hidden])")
    check_accessible(page)
    page.click(f"#label-options .option:has-text('{wanted}')")
    idle(page)
    assert shown(page)[0][4][1] == wanted
    page.fill("#call", "1")
    page.select_option("#compare", "names")
    page.wait_for_selector(".line.other")
    check_accessible(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    if viewport is PHONE:
        page.click("#editor-close")
        assert page.is_hidden("#editor")


@pytest.mark.parametrize("viewport", [(320, 568), (375, 720), (390, 844)], ids=str)
def test_the_editor_of_a_phone_never_covers_the_word_that_is_corrected(
    open_page: Any, viewport: tuple[int, int]
) -> None:
    size = dict(zip(("width", "height"), viewport, strict=True))
    page = open_page(" ".join([TEXT.replace("\n\n", " ")] * 4), viewport=size, has_touch=True)
    count = page.locator("#sentences > li").count()
    for line in (0, count // 2, count - 1):
        page.evaluate(
            "number => document.querySelectorAll('#sentences > li')[number].scrollIntoView({block: 'end'})", line
        )
        page.tap(UNIT.format(line, 4))
        page.wait_for_function(
            """() => {
              const word = document.querySelector("button.unit.selected").getBoundingClientRect();
              const above = document.querySelector(".fixes").getBoundingClientRect().bottom;
              return above <= word.top && word.bottom <= document.querySelector("#editor").getBoundingClientRect().top;
            }""",
            timeout=3_000,
        )
        page.tap("#editor-close")


@pytest.mark.parametrize("width", [320, 360, 390, 480, 760])
def test_the_number_of_fixes_fits_beside_or_below_the_buttons(open_page: Any, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 700}, has_touch=True)
    page.evaluate(
        """() => {
          document.querySelector("#next").textContent = "Next uncertain (12)";
          document.querySelector("#counter").textContent = "2 fixes · 3 labels set · 1 confirmed";
        }"""
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [page.locator(each).bounding_box() for each in ("#next", "#undo", "#redo", "#counter")]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert boxes[0]["y"] == boxes[1]["y"] == boxes[2]["y"]
    # What a word is scrolled to leaves room for all of it.
    assert page.locator(".fixes").bounding_box()["height"] <= 88


def test_the_theme_can_be_chosen(open_page: Any) -> None:
    page = open_page(None, color_scheme="light")
    page.click("#theme")
    page.click("#theme")
    assert page.get_attribute("#theme", "aria-label") == "Theme: dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
