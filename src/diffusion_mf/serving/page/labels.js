// Labels, spans and fixes: what follows from the data alone, without the document.

const BOUNDARY = /^([BIMESLU])-(.+)$/;

/** Boundary letter and kind of a label; a label without boundaries is its own kind, and the kind of O is null. */
export function splitLabel(label, model) {
  if (model.scheme === "plain") return { boundary: "", kind: label };
  const match = BOUNDARY.exec(label);
  return match ? { boundary: match[1], kind: match[2] } : { boundary: "", kind: label === "O" ? null : label };
}

/**
 * What the page needs to know of models: their kinds in order, and whether they mark spans.
 *
 * Models of one task have the same colours, so that they can be compared.
 */
export function describeModels(models) {
  const ordered = (kinds) => [...new Set(kinds)].sort((one, other) => one.localeCompare(other, "en"));
  const kindsOf = (model) => ordered(model.labels.map((label) => splitLabel(label, model).kind).filter((kind) => kind !== null));
  return models.map((model) => ({
    ...model,
    kinds: kindsOf(model),
    coloured: ordered(models.filter(({ task }) => task === model.task).flatMap(kindsOf)),
    hasSpans: model.scheme !== "plain",
    hasOutside: model.scheme !== "plain" && model.labels.includes("O"),
    isOfCharacters: model.task === "seg-pos",
  }));
}

const NUM_COLOURS = 18;

/** The class that gives an element the colour of a kind. */
export function colourClass(kind, model) {
  const index = model.coloured.indexOf(kind);
  return kind === null || index < 0 ? "k-none" : `k${index % NUM_COLOURS}`;
}

/** How labels are named in the page. */
export const kindName = (kind) => (kind === null ? "none" : kind);

export const percent = (probability) => `${Math.round(100 * probability)}\u00a0%`;

/**
 * A sentence as items that have a label each: spans and the units outside of them, or single units.
 * Every item has start, end (exclusive), kind and score.
 */
export function itemsOf(result, model) {
  const items = [];
  if (!model.hasSpans) {
    result.labels.forEach((label, unit) => {
      items.push({ start: unit, end: unit + 1, kind: label, score: result.scores[unit] });
    });
    return items;
  }
  let unit = 0;
  for (const span of [...result.spans, null]) {
    for (; unit < (span ? span.start : result.labels.length); unit += 1) {
      const { kind } = splitLabel(result.labels[unit], model);
      items.push({ start: unit, end: unit + 1, kind, score: result.scores[unit] });
    }
    if (span) {
      items.push({ start: span.start, end: span.end, kind: span.label, score: span.confidence });
      unit = span.end;
    }
  }
  return items;
}

export const itemAt = (items, unit) => items.find((item) => item.start <= unit && unit < item.end);

/** The text of units from start to end. */
export function textOf(sentence, start, end, model) {
  let text = "";
  for (let unit = start; unit < end; unit += 1) {
    text += (unit > start && hasGap(sentence, unit, model) ? " " : "") + sentence.units[unit];
  }
  return text;
}

/** Whether white space stands before a unit. */
export function hasGap(sentence, unit, model) {
  if (unit === 0) return false;
  if (sentence.offsets) return sentence.offsets[unit - 1][1] < sentence.offsets[unit][0];
  return !model.isOfCharacters;
}

// A fix is { sentence, start, end, kind }: units from start to end are one span of a kind, or in none (null), or have a label.

const overlaps = (one, other) => one.sentence === other.sentence && one.start < other.end && other.start < one.end;

/** The fixes with some more; a new one replaces those it overlaps. */
export function withFixes(fixes, added) {
  return [...fixes.filter((fix) => !added.some((other) => overlaps(fix, other))), ...added];
}

/** What the server is to know of a sentence beforehand. */
export function clampOf(sentence, fixes, model) {
  const parts = [];
  for (const fix of fixes.filter((each) => each.sentence === sentence)) {
    if (model.hasSpans && fix.kind !== null) {
      parts.push({ units: [fix.start, fix.end], type: fix.kind });
    } else {
      const labels = {};
      for (let unit = fix.start; unit < fix.end; unit += 1) labels[unit] = fix.kind ?? "O";
      parts.push(labels);
    }
  }
  return parts.length ? parts : null;
}

/** All places with the same units as a selection, itself included; they do not overlap each other. */
export function occurrencesOf(sentences, { sentence, start, end }) {
  const wanted = sentences[sentence].units.slice(start, end);
  const found = [];
  sentences.forEach(({ units }, index) => {
    for (let unit = 0; unit + wanted.length <= units.length; unit += 1) {
      if (wanted.every((each, place) => units[unit + place] === each)) {
        // The selection itself comes before places that overlap it.
        const isOther = index === sentence && unit !== start && unit < end && start < unit + wanted.length;
        if (isOther) continue;
        found.push({ sentence: index, start: unit, end: unit + wanted.length });
        unit += wanted.length - 1;
      }
    }
  });
  return found;
}

/** What is different between two results of a sentence, as items of the new one with the kinds they had. */
export function changesOf(before, after, sentence, model) {
  const old = itemsOf(before, model);
  const changes = [];
  for (const item of itemsOf(after, model)) {
    const same = itemAt(old, item.start);
    if (same.start === item.start && same.end === item.end && same.kind === item.kind) continue;
    const kinds = new Set();
    for (let unit = item.start; unit < item.end; unit += 1) kinds.add(kindName(itemAt(old, unit).kind));
    const change = { sentence, start: item.start, end: item.end, from: [...kinds].join(", "), to: kindName(item.kind) };
    const last = changes.at(-1);
    // Units that a span has lost are one change.
    if (item.kind === null && last?.to === change.to && last.from === change.from && last.end === change.start) {
      last.end = change.end;
    } else {
      changes.push(change);
    }
  }
  return changes;
}
