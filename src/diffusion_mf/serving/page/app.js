// The page: what is labelled, what was fixed, and what is shown.

import { ApiError, listModels, readFile, tag, writeFile } from "./api.js";
import { Denoising } from "./denoising.js";
import {
  changesOf,
  clampOf,
  colourClass,
  describeModels,
  itemAt,
  itemsOf,
  kindName,
  occurrencesOf,
  percent,
  textOf,
  withFixes,
} from "./labels.js";
import { Selection, element, renderSentence } from "./text.js";

const $ = (id) => document.getElementById(id);
const SHOWN_CALLS = 10;
const EXAMPLES = {
  // A fix of "houses" changes another label.
  tags:
    "The complex houses married and single soldiers. Time flies like an arrow; fruit flies like a banana. " +
    "Police help dog bite victim.",
  spans:
    "Ada Lovelace met Charles Babbage in London in June 1833. Years later Lovelace wrote the notes that made her famous.\n\n" +
    "Turin had listened to Babbage, but Paris never did. When Lovelace died, London hardly noticed.",
  characters: "今天天气很好，我们一起去北京。北京的秋天最美。",
};

const state = {
  models: [],
  model: null,
  other: null,
  /** { name, text?, texts }: where the sentences come from */
  source: null,
  /** { units, offsets?, text?, document? } */
  sentences: [],
  /** { labels, scores, spans } of every sentence */
  results: [],
  otherResults: null,
  fixes: [],
  /** { title, sentence, start, end, followed } */
  log: [],
  past: [],
  future: [],
  threshold: 0.75,
  visited: new Set(),
  trail: [],
  alone: null,
  lastAction: 0,
};

let selection;
let denoising;
let queue = Promise.resolve();
let trajectoryRequest = null;
let thresholdTimer = null;

/** Say something to screen readers. */
function announce(sentence) {
  $("status").textContent = "";
  requestAnimationFrame(() => ($("status").textContent = sentence));
}

function complain(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  $("problem").textContent = error instanceof ApiError ? error.message : "The page has failed; the console says where.";
  $("problem").hidden = false;
}

/** Say something that everybody is to see, too. */
function tell(sentence) {
  $("notice").textContent = sentence;
  $("notice").hidden = !sentence;
  return sentence;
}

/** Do one thing after the other, and show what goes wrong. */
function inTurn(work) {
  queue = queue.then(async () => {
    document.body.classList.add("busy");
    $("problem").hidden = true;
    $("notice").hidden = true;
    try {
      await work();
    } catch (error) {
      complain(error);
    } finally {
      document.body.classList.remove("busy");
    }
  });
  return queue;
}

// ---------------------------------------------------------------------------------------------------- labelling

const pick = ({ labels, scores, spans }) => ({ labels, scores, spans });

/** Label sentences around all fixes; the results by number of sentence. */
async function labelled(model, numbers, fixes, sentences = state.sentences) {
  const chosen = numbers.map((number) => sentences[number]);
  const body = { model: model.name, sentences: chosen.map(({ units }) => units), scores: true };
  if (model.recall) body.documents = chosen.map(({ document }) => document ?? null);
  const clamps = numbers.map((number) => clampOf(number, fixes, model));
  if (clamps.some(Boolean)) body.clamps = clamps;
  // Labels can only be compared in one scheme.
  if (model.hasSpans && state.model.hasSpans && model.scheme !== state.model.scheme) body.scheme = state.model.scheme;
  const answer = await tag(body);
  return new Map(numbers.map((number, index) => [number, pick(answer.sentences[index])]));
}

/** The sentences that are labelled together with some of them: of a model that recalls, all of their documents. */
function together(numbers) {
  if (!state.model.recall) return [...numbers].sort((one, other) => one - other);
  const documents = new Set([...numbers].map((number) => state.sentences[number].document ?? `alone ${number}`));
  return state.sentences
    .map(({ document }, number) => [document ?? `alone ${number}`, number])
    .filter(([document]) => documents.has(document))
    .map(([, number]) => number);
}

const all = () => [...state.sentences.keys()];

/** Label text that was typed or pasted; `before` is what Undo leads back to. */
async function labelText(text, before = snapshot()) {
  if (!text.trim()) {
    $("text").focus();
    announce("There is no text to label.");
    return;
  }
  const answer = await tag({ model: state.model.name, texts: [text], scores: true });
  const found = answer.texts[0].sentences;
  await begin(
    { name: "pasted text", text, texts: [text] },
    found.map(({ units, offsets }) => ({ units, offsets, text: 0, document: 1 })),
    found.map(pick),
    before,
  );
}

async function labelFile(file, before = snapshot()) {
  const found = await readFile(file, state.model.name, $("file-format").value);
  if (!found.sentences.length) throw new ApiError(200, `${file.name} has no sentences.`);
  const results = await labelled(state.model, [...found.sentences.keys()], [], found.sentences);
  const source = { name: `${file.name}, read as ${found.format}`, file, texts: found.texts };
  await begin(source, found.sentences, [...results.values()], before);
  if (found.note) complain(new ApiError(200, found.note));
}

/** Show newly labelled sentences, without any fixes. */
async function begin(source, sentences, results, before) {
  // Offsets count code points, strings UTF-16 units.
  source.points = source.texts.map((text) => [...text]);
  remember(before);
  Object.assign(state, { source, sentences, results, fixes: [], log: [] });
  openSource();
  await compareAgain();
  show();
  const count = uncertainItems().length;
  const lost = before.fixes.length;
  const notice = tell(lost ? `Undo brings back what was here before, with ${labelsSet(lost)}.` : "");
  announce(`${sentences.length} sentences labelled; ${count} labels are uncertain. ${notice}`);
  if (sentences.length) showTrajectory(0);
}

/** Nothing of the sentences that were shown before is selected any more. */
function openSource() {
  Object.assign(state, { trail: [], alone: null });
  state.visited.clear();
  selection.clear();
  denoising.clear();
  $("source").textContent = state.source.file ? state.source.name : "";
  $("work").hidden = false;
  $("intro").hidden = true;
  $("editor").hidden = true;
  document.body.classList.remove("editing");
}

const labelsSet = (count) => `${count} ${count === 1 ? "label" : "labels"} that you set`;

/** What the other model says of the same sentences, with the same fixes if it has the labels; without an answer, nothing. */
async function compareAgain() {
  try {
    await compare();
  } catch (error) {
    complain(error);
  }
}

async function compare() {
  state.otherResults = null;
  const other = state.other;
  if (!other || !state.sentences.length) return;
  const fixes = other.task === state.model.task ? state.fixes.filter((fix) => has(other, fix.kind)) : [];
  const results = await labelled(other, all(), fixes).catch((error) => {
    // It may have the labels, but no legal sequence with them.
    if (error.status !== 422 || !fixes.length) throw error;
    return labelled(other, all(), []);
  });
  state.otherResults = [...results.values()];
}

const has = (model, kind) => (kind === null ? model.hasOutside : model.kinds.includes(kind));

/** Use another model for what is shown; fixes stay where the new model has their labels. */
async function changeModel(name) {
  const before = snapshot();
  state.model = state.models.find((model) => model.name === name);
  try {
    if (state.source) await labelAnew(before);
  } catch (error) {
    state.model = before.model;
    $("model").value = before.model.name;
    throw error;
  } finally {
    offerComparison();
  }
}

async function labelAnew(before) {
  if (before.model.isOfCharacters !== state.model.isOfCharacters) {
    await (state.source.file ? labelFile(state.source.file, before) : labelText(state.source.text, before));
    return;
  }
  const fixes = before.model.task === state.model.task ? state.fixes.filter((fix) => has(state.model, fix.kind)) : [];
  const results = await labelled(state.model, all(), fixes);
  offerComparison();
  remember(before);
  Object.assign(state, { results: [...results.values()], fixes, log: [], alone: null });
  await compareAgain();
  show();
  const lost = before.fixes.length - fixes.length;
  const notice = tell(lost ? `${state.model.name} has no place for ${labelsSet(lost)}; Undo brings back what was here before.` : "");
  announce(`Labelled by ${state.model.name}. ${notice}`);
  refreshSelection();
}

// ---------------------------------------------------------------------------------------------------- fixes

/** Set labels: a fix, or several at once; the rest is labelled again around all of them. */
function fix(added, { title }) {
  state.lastAction += 1;
  const action = state.lastAction;
  return inTurn(async () => {
    const fixes = withFixes(state.fixes, added.map((each) => ({ ...each, action })));
    await relabel(fixes, new Set(added.map((each) => each.sentence)), (changes) => {
      const isAdded = ({ sentence, start, end }) =>
        added.some((each) => each.sentence === sentence && each.start < end && start < each.end);
      const followed = changes.filter((change) => !isAdded(change));
      const [first] = added;
      state.log = [{ ...first, title, followed }, ...state.log];
      const count = followed.length;
      return `${title}. ${count ? `${count} other label${count > 1 ? "s" : ""} followed` : "Nothing else changed"}.`;
    });
  });
}

async function relabel(fixes, numbers, record) {
  const before = snapshot();
  const results = await labelled(state.model, together(numbers), fixes);
  const changes = [];
  state.results = state.results.map((old, number) => {
    const now = results.get(number);
    if (!now) return old;
    changes.push(...changesOf(old, now, number, state.model));
    return now;
  });
  state.fixes = fixes;
  remember(before);
  const sentence = record(changes);
  await compareAgain();
  show([...results.keys()]);
  flash(changes);
  announce(sentence);
  refreshSelection();
}

function snapshot() {
  const { model, source, sentences, results, fixes, log } = state;
  return { model, source, sentences, results, fixes, log };
}

/** Let Undo lead back to an earlier state. */
function remember(before) {
  if (!before.source) return;
  state.past.push(before);
  state.future = [];
}

/** Fixes as they were downloaded. */
const saved = new WeakSet();

/** Whether there are fixes that were not downloaded: here, or where another text or model took their place. */
function hasUnsavedFixes() {
  const states = [...state.past, snapshot()];
  return states.some(({ source, model, fixes }, index) => {
    const next = states[index + 1];
    const isKept = next?.source === source && (next.model === model || next.fixes.length === fixes.length);
    return fixes.length > 0 && !isKept && !saved.has(fixes);
  });
}

/** Go back to an earlier state, or forward again. */
function travel(from, to, word) {
  return inTurn(async () => {
    const target = from.pop();
    if (!target) return;
    const before = snapshot();
    to.push(before);
    const isSameSource = target.source === before.source;
    const isSame = isSameSource && target.model === before.model;
    const numbers = isSame ? all().filter((number) => target.results[number] !== state.results[number]) : null;
    const changes = (numbers ?? []).flatMap((number) =>
      changesOf(state.results[number], target.results[number], number, state.model),
    );
    Object.assign(state, target);
    if (!isSame) {
      $("model").value = state.model.name;
      offerComparison();
      state.alone = null;
    }
    if (!isSameSource) {
      openSource();
      if (state.source.text !== undefined) $("text").value = state.source.text;
    }
    await compareAgain();
    show(numbers);
    flash(changes);
    announce(`${word}: ${state.fixes.length} fixes remain.`);
    refreshSelection();
  });
}

const undo = () => travel(state.past, state.future, "Undone");
const redo = () => travel(state.future, state.past, "Done again");

const quoted = (place) => `“${textOf(state.sentences[place.sentence], place.start, place.end, state.model)}”`;

function setKind(kind) {
  const { sentence, start, end } = selection.current;
  const item = itemAt(itemsOf(state.results[sentence], state.model), start);
  const isSame = item.start === start && item.end === end && item.kind === kind;
  const place = { sentence, start, end };
  const title = isSame
    ? `${quoted(place)} is ${kindName(kind)}`
    : `${quoted(place)} ${kindName(item.kind)} → ${kindName(kind)}`;
  return fix([{ ...place, kind, isConfirmed: isSame }], { title });
}

function currentKind() {
  const now = selection.current;
  const item = itemAt(itemsOf(state.results[now.sentence], state.model), now.start);
  return item.start === now.start && item.end === now.end ? item.kind : undefined;
}

/** Give all occurrences of the selected words the label of the selection. */
function applyToAll() {
  const now = selection.current;
  const kind = now && currentKind();
  if (kind === undefined) return undefined;
  const { count, open, numOthers } = occurrences(now, kind);
  if (!open.length) {
    announce("There is no other occurrence to change.");
    return undefined;
  }
  const where = numOthers ? `${count - numOthers} of ${count} occurrences` : `all ${count} occurrences`;
  const added = open.map((place) => ({ ...place, kind, isConfirmed: false }));
  return fix(added, { title: `${quoted(now)} → ${kindName(kind)}, ${where}` });
}

/** How often the selected words occur, where they are to be given a label, and how many keep another one. */
function occurrences(now, kind) {
  const places = occurrencesOf(state.sentences, now);
  const open = [];
  let numOthers = 0;
  for (const place of places) {
    const { sentence, start, end } = place;
    const item = itemAt(itemsOf(state.results[sentence], state.model), start);
    // What was fixed already stays as it is, and so does a longer span of the same label: a last name after a first name.
    const isFixed = state.fixes.some((each) => each.sentence === sentence && each.start < end && start < each.end);
    const isLonger = item.end >= end && item.end - item.start > end - start;
    if (!isFixed && !(isLonger && item.kind === kind)) open.push(place);
    else if (item.kind !== kind) numOthers += 1;
  }
  return { count: places.length, open, numOthers };
}

function removeFix() {
  const { sentence, start, end } = selection.current;
  const place = { sentence, start, end };
  const fixes = state.fixes.filter((each) => !(each.sentence === sentence && each.start < end && start < each.end));
  return inTurn(() =>
    relabel(fixes, new Set([sentence]), (changes) => {
      state.log = [{ ...place, title: `${quoted(place)} is no longer fixed`, followed: changes }, ...state.log];
      return `${quoted(place)} is no longer fixed.`;
    }),
  );
}

const indexed = { fixes: null, bySentence: new Map() };

/** The fix that holds at a unit. */
function fixAt(sentence, unit) {
  if (indexed.fixes !== state.fixes) {
    indexed.fixes = state.fixes;
    indexed.bySentence = Map.groupBy(state.fixes, (each) => each.sentence);
  }
  return indexed.bySentence.get(sentence)?.find((each) => each.start <= unit && unit < each.end);
}

// ---------------------------------------------------------------------------------------------------- what is uncertain

/** Items below the threshold that are not fixed, the least certain first. */
function uncertainItems() {
  return state.results
    .flatMap((result, sentence) => itemsOf(result, state.model).map((item) => ({ ...item, sentence })))
    .filter((item) => item.score < state.threshold && !fixAt(item.sentence, item.start))
    .sort((one, other) => one.score - other.score);
}

const keyOf = (item) => `${item.sentence}:${item.start}`;

function nextUncertain() {
  const items = uncertainItems();
  if (!items.length) {
    announce("No label is uncertain.");
    return;
  }
  let next = items.find((item) => !state.visited.has(keyOf(item)));
  if (!next) {
    state.visited.clear();
    [next] = items;
  }
  state.visited.add(keyOf(next));
  state.trail.push({ sentence: next.sentence, unit: next.start });
  goTo({ sentence: next.sentence, unit: next.start });
  announce(`${quoted(next)}: ${kindName(next.kind)}, ${percent(next.score)}; ${items.length} are uncertain.`);
}

function previousUncertain() {
  if (state.trail.length < 2) return;
  const last = state.trail.pop();
  state.visited.delete(`${last.sentence}:${last.unit}`);
  goTo(state.trail.at(-1));
}

function goTo(place) {
  selection.select(place, { isOpening: true });
  scrollTo(place, "center");
}

function scrollTo(place, block) {
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  selection.button(place)?.scrollIntoView({ block, behavior: isCalm ? "auto" : "smooth" });
}

const isWide = () => matchMedia("(min-width: 60rem)").matches;

// ---------------------------------------------------------------------------------------------------- what is shown

/** Show everything, or of the text only some sentences. */
function show(numbers = null) {
  if (numbers === null || state.otherResults) {
    $("sentences").replaceChildren(...state.sentences.map((_, number) => sentenceElement(number)));
  } else {
    for (const number of numbers) $("sentences").children[number].replaceWith(sentenceElement(number));
  }
  $("sentences").classList.toggle("compared", Boolean(state.otherResults));
  showLegend();
  showHeads();
  selection.mark();
  showCounter();
  showLog();
}

function sentenceElement(number) {
  const { model, other, otherResults, threshold } = state;
  const sentence = state.sentences[number];
  const rival = otherResults?.[number];
  const isComparable = rival && other.task === model.task;
  const differs = isComparable ? (unit) => state.results[number].labels[unit] !== rival.labels[unit] : undefined;
  const line = element("li");
  line.dataset.sentence = number;
  // A blank line in the text is a paragraph.
  const before = state.sentences[number - 1];
  const gap =
    sentence.offsets && before?.text === sentence.text && before.offsets.length
      ? state.source.points[sentence.text].slice(before.offsets.at(-1)[1], sentence.offsets[0][0]).join("")
      : "";
  if (/\n\s*\n/.test(gap) || (before && before.text !== sentence.text)) line.classList.add("paragraph");
  line.append(
    renderSentence(sentence, state.results[number], model, {
      threshold,
      differs,
      isFixed: (unit) => Boolean(fixAt(number, unit)),
    }),
  );
  if (rival) {
    const shown = renderSentence(sentence, rival, other, { threshold, differs, isFixed: () => false, isStatic: true });
    shown.classList.add("other");
    line.append(shown);
  }
  return line;
}

function showLegend() {
  const counts = new Map();
  for (const result of state.results) {
    for (const item of itemsOf(result, state.model)) counts.set(item.kind, (counts.get(item.kind) ?? 0) + 1);
  }
  const entries = state.model.kinds.filter((kind) => counts.has(kind));
  $("legend").replaceChildren(
    ...entries.map((kind) => {
      const button = element(
        "button",
        { type: "button", className: `entry ${colourClass(kind, state.model)}`, ariaPressed: String(state.alone === kind) },
        element("span", { className: "swatch" }),
        `${kind} `,
        element("span", { className: "count" }, String(counts.get(kind))),
      );
      button.addEventListener("click", () => {
        state.alone = state.alone === kind ? null : kind;
        for (const other of $("legend").querySelectorAll("button")) other.ariaPressed = "false";
        button.ariaPressed = String(state.alone === kind);
        showAlone();
      });
      return element("li", {}, button);
    }),
  );
  showAlone();
}

function showAlone() {
  $("sentences").classList.toggle("filtered", state.alone !== null);
  for (const item of $("sentences").querySelectorAll(".item")) {
    item.classList.toggle("chosen", state.alone !== null && item.dataset.kind === state.alone);
  }
}

function showHeads() {
  const { otherResults, other, model } = state;
  $("heads").hidden = !otherResults;
  if (!otherResults) return;
  $("head-first").textContent = model.name;
  $("head-second").textContent = other.name;
  let total = 0;
  let same = 0;
  state.results.forEach((result, number) =>
    result.labels.forEach((label, unit) => {
      total += 1;
      same += label === otherResults[number].labels[unit];
    }),
  );
  $("agreement").textContent =
    other.task === model.task ? `They agree on ${same} of ${total} labels; the others are underlined.` : "";
}

function showCounter() {
  // Labels that were set at once count as one fix.
  const made = new Set(state.fixes.filter((each) => !each.isConfirmed).map(({ action }) => action)).size;
  const confirmed = new Set(state.fixes.filter((each) => each.isConfirmed).map(({ action }) => action)).size;
  const followed = state.log.reduce((sum, entry) => sum + entry.followed.length, 0);
  const parts = [`${made} fix${made === 1 ? "" : "es"}`];
  if (state.fixes.length > made + confirmed) parts.push(`${state.fixes.length} labels set`);
  if (confirmed) parts.push(`${confirmed} confirmed`);
  if (followed) parts.push(`${followed} followed`);
  $("counter").textContent = parts.join(" · ");
  const count = uncertainItems().length;
  $("next").textContent = count ? `Next uncertain (${count})` : "Next uncertain";
  $("next").disabled = !count;
  $("undo").disabled = !state.past.length;
  $("redo").disabled = !state.future.length;
}

function placeButton(place, text) {
  const button = element("button", { type: "button", className: "link" }, text);
  button.addEventListener("click", () => goTo({ sentence: place.sentence, unit: place.start }));
  return button;
}

function showLog() {
  $("log-empty").hidden = state.log.length > 0;
  $("log").replaceChildren(
    ...state.log.map((entry) => {
      const line = element("li", {}, placeButton(entry, entry.title));
      if (entry.followed.length) {
        const shown = entry.followed.slice(0, 12).map((change) => {
          const what = change.from === change.to ? `${change.to}, other ends` : `${change.from} → ${change.to}`;
          const isRecalled = state.model.recall && quoted(change) === quoted(entry);
          return element("li", {}, placeButton(change, quoted(change)), ` ${what}${isRecalled ? ", recalled" : ""}`);
        });
        if (entry.followed.length > 12) shown.push(element("li", {}, `and ${entry.followed.length - 12} more`));
        line.append(element("ul", {}, ...shown));
      } else {
        line.append(element("p", { className: "empty" }, "nothing else changed"));
      }
      return line;
    }),
  );
}

/** Let what has changed stand out for a moment. */
function flash(changes) {
  for (const change of changes) {
    for (let unit = change.start; unit < change.end; unit += 1) {
      const item = selection.button({ sentence: change.sentence, unit })?.closest(".item");
      item?.classList.add("flash");
    }
  }
  setTimeout(() => {
    for (const item of document.querySelectorAll(".item.flash")) item.classList.remove("flash");
  }, 2400);
}

// ---------------------------------------------------------------------------------------------------- the selection

let options = [];
let active = 0;

function onSelection(now, isOpening) {
  if (now.sentence !== denoising.sentence) showTrajectory(now.sentence);
  else tellSelected();
  if (isOpening || !$("editor").hidden || isWide()) openEditor();
  showEditor();
  // On a small screen, the editor covers what is below.
  if (!$("editor").hidden && !isWide()) scrollTo(now, "nearest");
}

/** The story of the selected word. */
function tellSelected() {
  const now = selection.current;
  if (now && now.sentence === denoising.drawn) denoising.tell(now.unit, { isScrolling: true });
}

/** Go to the denoising of the selected word; Escape leads back. */
function goToStory() {
  const { unit } = selection.current;
  // On a small screen, the editor would cover it.
  if (!isWide()) closeEditor();
  $("denoising-heading").scrollIntoView({ block: "start" });
  denoising.columns?.[unit]?.pill.focus({ preventScroll: true });
}

function openEditor() {
  $("editor").hidden = false;
  document.body.classList.add("editing");
}

function closeEditor() {
  $("editor").hidden = true;
  document.body.classList.remove("editing");
  if (selection.current) selection.button(selection.current)?.focus();
}

function showEditor() {
  const now = selection.current;
  if (!now) return;
  const { model } = state;
  const items = itemsOf(state.results[now.sentence], model);
  const item = itemAt(items, now.start);
  const isItem = item.start === now.start && item.end === now.end;
  const known = fixAt(now.sentence, now.start);
  $("editor-heading").textContent = textOf(state.sentences[now.sentence], now.start, now.end, model);
  const facts = isItem
    ? [
        element("span", { className: `tag ${colourClass(item.kind, model)}` }, kindName(item.kind)),
        ` ${percent(item.score)}`,
        known ? (known.isConfirmed ? ", confirmed by you" : ", fixed by you") : item.score < state.threshold ? ", uncertain" : "",
      ]
    : [`${now.end - now.start} units, not one span`];
  $("editor-facts").replaceChildren(...facts);
  $("ends").hidden = !model.hasSpans;
  const size = state.sentences[now.sentence].units.length;
  $("start-earlier").disabled = now.start === 0;
  $("start-later").disabled = now.start + 1 >= now.end;
  $("end-earlier").disabled = now.end - 1 <= now.start;
  $("end-later").disabled = now.end >= size;
  $("confirm").disabled = !isItem || Boolean(known);
  $("remove-fix").hidden = !known;
  const { count, open } = isItem ? occurrences(now, item.kind) : { count: 0, open: [] };
  $("apply-all").hidden = !open.some((place) => place.sentence !== now.sentence || place.start !== now.start);
  $("apply-all").textContent = `Apply to all ${count} occurrences`;
  $("label-input").value = "";
  showOptions();
}

/** The labels that fit what was typed: those that begin with it first, then by belief. */
function showOptions() {
  const now = selection.current;
  const { model } = state;
  const typed = $("label-input").value.trim().toLowerCase();
  // What is fixed leaves nothing to believe.
  const isOpen = denoising.drawn === now.sentence && !fixAt(now.sentence, now.start);
  const beliefs = isOpen ? denoising.kindsOf(now.start, now.end) : new Map();
  const kinds = model.hasOutside ? [null, ...model.kinds] : model.kinds;
  const rank = (kind) => (kindName(kind).toLowerCase().startsWith(typed) ? 0 : 1);
  options = kinds
    .filter((kind) => kindName(kind).toLowerCase().includes(typed) || (kind === null && typed === "o"))
    .sort((one, other) => rank(one) - rank(other) || (beliefs.get(kindName(other)) ?? 0) - (beliefs.get(kindName(one)) ?? 0));
  const current = currentKind();
  active = typed || current === undefined ? 0 : Math.max(0, options.indexOf(current));
  $("label-options").replaceChildren(
    ...options.map((kind, index) => {
      const belief = beliefs.get(kindName(kind));
      const bar = element("span", { className: "belief", ariaHidden: "true" }, element("span"));
      bar.firstChild.style.width = `${100 * (belief ?? 0)}%`;
      bar.classList.toggle("off", belief === undefined);
      const option = element(
        "li",
        { id: `option-${index}`, role: "option", className: `option ${colourClass(kind, model)}` },
        element("span", { className: "swatch" }),
        element("span", { className: "name" }, kindName(kind)),
        bar,
        element("span", { className: "score" }, belief === undefined ? "" : percent(belief)),
      );
      if (kind === current) option.classList.add("current");
      option.addEventListener("click", () => choose(kind));
      return option;
    }),
  );
  if (!options.length) {
    const none = { role: "option", className: "empty", ariaDisabled: "true", ariaSelected: "false" };
    $("label-options").append(element("li", none, "no label fits"));
  }
  markActive();
}

function markActive() {
  [...$("label-options").children].slice(0, options.length).forEach((option, index) => {
    option.setAttribute("aria-selected", String(index === active));
    if (index === active) option.scrollIntoView({ block: "nearest" });
  });
  if (options.length) $("label-input").setAttribute("aria-activedescendant", `option-${active}`);
  else $("label-input").removeAttribute("aria-activedescendant");
}

async function choose(kind) {
  const place = selection.current;
  await setKind(kind);
  selection.button(place)?.focus();
}

/** After the labels have changed: select the item that is now where the selection was. */
function refreshSelection() {
  const now = selection.current;
  if (now) {
    const hadFocus = document.activeElement === document.body || $("sentences").contains(document.activeElement);
    const item = itemAt(itemsOf(state.results[now.sentence], state.model), now.unit);
    selection.current = { ...now, start: item.start, end: item.end };
    selection.mark();
    if (hadFocus) selection.button(now)?.focus();
    showEditor();
  }
  if (state.sentences.length) showTrajectory(now?.sentence ?? denoising.sentence ?? 0);
}

/** Fetch and draw the trajectory of a sentence, around all fixes. */
async function showTrajectory(number) {
  trajectoryRequest?.abort();
  const request = new AbortController();
  trajectoryRequest = request;
  denoising.sentence = number;
  const { model } = state;
  const { labels } = state.results[number];
  const ask = async (numbers, calls) => {
    const chosen = numbers.map((each) => state.sentences[each]);
    const body = { model: model.name, sentences: chosen.map(({ units }) => units), trajectory: true, marginals: true };
    if (calls) body.calls = calls;
    if (model.recall) body.documents = chosen.map(({ document }) => document ?? null);
    const clamps = numbers.map((each) => clampOf(each, state.fixes, model));
    if (clamps.some(Boolean)) body.clamps = clamps;
    const answer = await tag(body, request.signal);
    const index = numbers.indexOf(number);
    // The picture must not contradict the text.
    const isOther = calls && answer.sentences[index].labels.some((label, unit) => label !== labels[unit]);
    return isOther ? ask(numbers) : [answer, index];
  };
  // Models may need fewer calls than it takes to see that further ones change nothing.
  const calls = model.system.startsWith("diffusion") ? SHOWN_CALLS : null;
  try {
    const [answer, index] = await ask(together([number]), calls).catch((error) => {
      // A long document is too much for one answer with trajectories.
      if (error.status === 413) return ask([number], calls);
      throw error;
    });
    const sentence = answer.sentences[index];
    const isFixed = (unit) => Boolean(fixAt(number, unit));
    const { units, trajectory: steps, marginals } = sentence;
    denoising.draw({ number, units, labels: answer.labels, steps, marginals, model, isFixed });
    $("denoising-note").textContent =
      sentence.trajectory.length > 1
        ? "The width of a colour is the belief in a label. A ring marks the call that settles a word. " +
          "Beliefs sharpen with every call; the percentages in the text are calibrated."
        : "This model labels in one pass. The width of a colour is the belief in a label.";
    tellSelected();
    if (selection.current?.sentence === number && !$("editor").hidden && !$("label-input").value) showOptions();
  } catch (error) {
    complain(error);
  }
}

// ---------------------------------------------------------------------------------------------------- the controls

/** Make the selected span longer or shorter. */
function moveEnd(start, end) {
  const now = selection.current;
  if (!now) return;
  const place = { ...now, start: now.start + start, end: now.end + end };
  place.unit = Math.min(Math.max(place.unit, place.start), place.end - 1);
  selection.set(place);
}

function offerComparison() {
  const others = state.models.filter((model) => model !== state.model && model.isOfCharacters === state.model.isOfCharacters);
  if (!others.includes(state.other)) state.other = null;
  $("compare-choice").hidden = !others.length;
  $("compare").replaceChildren(
    element("option", { value: "" }, "nothing"),
    ...others.map((model) => element("option", { value: model.name }, model.name)),
  );
  $("compare").value = state.other?.name ?? "";
}

async function exportFile() {
  const { fixes } = state;
  const format = $("export-format").value;
  const useScores = $("export-scores").checked && format !== "doccano";
  const { name, contents } = await writeFile({
    model: state.model.name,
    format,
    scores: useScores,
    texts: state.source.texts,
    sentences: state.sentences.map(({ units, text, offsets }, number) => {
      const { labels, scores, spans } = state.results[number];
      const confidence = useScores ? { scores, spans } : {};
      return { units, labels, ...confidence, ...(offsets ? { text, offsets } : {}) };
    }),
  });
  const link = element("a", { href: URL.createObjectURL(contents), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  saved.add(fixes);
  announce(`${name} is downloaded.`);
}

function onTextKey(event) {
  if (!event.target.closest?.("button.unit")) return;
  if (selection.onKey(event)) {
    event.preventDefault();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = {
    "]": nextUncertain,
    "[": previousUncertain,
    "*": applyToAll,
    "=": () => currentKind() !== undefined && setKind(currentKind()),
    "?": () => $("keys-dialog").showModal(),
    Escape: closeEditor,
    Enter: () => typeLabel(""),
    Delete: () => state.model.hasOutside && setKind(null),
    Backspace: () => state.model.hasOutside && setKind(null),
  };
  const action = actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  } else if (event.key.length === 1 && event.key !== " ") {
    event.preventDefault();
    typeLabel(event.key);
  }
}

function typeLabel(text) {
  openEditor();
  showEditor();
  $("label-input").focus();
  $("label-input").value = text;
  showOptions();
}

function onLabelKey(event) {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!options.length) return;
    active = (active + (event.key === "ArrowDown" ? 1 : -1) + options.length) % options.length;
    markActive();
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (options.length) choose(options[active]);
    else announce("No label fits.");
  } else if (event.key === "Escape") {
    event.preventDefault();
    $("label-input").value = "";
    selection.button(selection.current)?.focus();
    showOptions();
  }
}

const THEMES = { "": "as the system", light: "light", dark: "dark" };

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").ariaLabel = `Theme: ${THEMES[theme]}`;
  $("theme").title = $("theme").ariaLabel;
}

function listen() {
  const on = (id, event, action) => $(id).addEventListener(event, action);
  on("label", "click", () => inTurn(() => labelText($("text").value)));
  on("example", "click", () => {
    const { isOfCharacters, hasSpans } = state.model ?? {};
    $("text").value = isOfCharacters ? EXAMPLES.characters : hasSpans ? EXAMPLES.spans : EXAMPLES.tags;
    inTurn(() => labelText($("text").value));
  });
  on("text", "keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    inTurn(async () => {
      await labelText($("text").value);
      // Whoever uses the keyboard goes on in the labelled text.
      if (state.sentences.length) selection.select({ sentence: 0, unit: 0 });
    });
  });
  on("file", "change", (event) => {
    const [file] = event.target.files;
    if (file) inTurn(() => labelFile(file));
    event.target.value = "";
  });
  on("model", "change", (event) => inTurn(() => changeModel(event.target.value)));
  on("compare", "change", (event) =>
    inTurn(async () => {
      state.other = state.models.find((model) => model.name === event.target.value) ?? null;
      await compare();
      if (state.source) show();
      announce(state.other ? `${state.model.name} beside ${state.other.name}. ${$("agreement").textContent}` : "One model.");
    }),
  );
  on("threshold", "input", (event) => {
    state.threshold = Number(event.target.value) / 100;
    $("threshold-value").textContent = percent(state.threshold);
    clearTimeout(thresholdTimer);
    thresholdTimer = setTimeout(show, 100);
  });
  on("next", "click", nextUncertain);
  on("undo", "click", undo);
  on("redo", "click", redo);
  on("confirm", "click", () => setKind(currentKind()));
  on("apply-all", "click", applyToAll);
  on("remove-fix", "click", removeFix);
  on("go-to-story", "click", goToStory);
  on("ribbons", "keydown", (event) => {
    if (event.key === "Escape" && selection.current) selection.button(selection.current)?.focus();
  });
  on("editor-close", "click", closeEditor);
  on("start-earlier", "click", () => moveEnd(-1, 0));
  on("start-later", "click", () => moveEnd(1, 0));
  on("end-earlier", "click", () => moveEnd(0, -1));
  on("end-later", "click", () => moveEnd(0, 1));
  on("label-input", "input", showOptions);
  on("label-input", "keydown", onLabelKey);
  on("sentences", "keydown", onTextKey);
  on("show-keys", "click", () => $("keys-dialog").showModal());
  on("export", "submit", (event) => {
    event.preventDefault();
    inTurn(exportFile);
  });
  on("export-format", "change", (event) => ($("export-scores").disabled = event.target.value === "doccano"));
  on("theme", "click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
    localStorage.setItem("diffusion-mf-theme", next);
    setTheme(next);
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("textarea, input:not([type=range], [type=checkbox])");
    if (!(event.ctrlKey || event.metaKey) || (isTyping && isTyping.value)) return;
    const key = event.key.toLowerCase();
    if (key === "z" || key === "y") {
      event.preventDefault();
      if (key === "y" || event.shiftKey) redo();
      else undo();
    }
  });
  window.addEventListener("beforeunload", (event) => {
    if (hasUnsavedFixes()) event.preventDefault();
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("drop").classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("dropping");
    const [file, ...others] = event.dataTransfer.files;
    if (!file) return;
    inTurn(async () => {
      await labelFile(file);
      if (others.length) complain(new ApiError(200, `Only ${file.name} was opened; drop one file at a time.`));
    });
  });
}

async function start() {
  setTheme(localStorage.getItem("diffusion-mf-theme") ?? "");
  denoising = new Denoising();
  selection = new Selection($("sentences"), {
    spanOf: (sentence, unit) => {
      const { start, end } = itemAt(itemsOf(state.results[sentence], state.model), unit);
      return [start, end];
    },
    changed: onSelection,
    hasSpans: () => state.model.hasSpans,
  });
  listen();
  await inTurn(async () => {
    state.models = describeModels(await listModels());
    [state.model] = state.models;
    $("model").replaceChildren(...state.models.map(({ name }) => element("option", { value: name }, name)));
    offerComparison();
  });
}

start();
