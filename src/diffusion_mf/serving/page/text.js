// The labelled text: units as buttons, one of which the Tab key reaches; arrow keys move between them.

import { colourClass, hasGap, itemsOf, kindName, percent } from "./labels.js";

/** A new element with properties and children. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/**
 * The elements of a sentence.
 *
 * `isFixed(unit)` and `differs(unit)` tell what is to be marked; units are buttons where they can be corrected.
 */
export function renderSentence(sentence, result, model, { threshold, isFixed, differs, isStatic }) {
  // Entities have their labels beside them; where every word has one, it stands below.
  const isBeside = model.hasSpans && !model.isOfCharacters;
  const line = element("div", { className: `line ${isBeside ? "spans" : "tags"}`, dir: "auto" });
  // Where words have spaces between them, lines are broken only there.
  let together = null;
  for (const item of itemsOf(result, model)) {
    const isNew = hasGap(sentence, item.start, model);
    if (isNew) line.append(" ");
    if (isNew || !together || model.isOfCharacters || together.childElementCount > 8) {
      together = element("span", { className: "together" });
      line.append(together);
    }
    const isUncertain = item.score < threshold && !isFixed(item.start);
    const classes = ["item", colourClass(item.kind, model)];
    if (isBeside && item.kind !== null) classes.push("span");
    if (isUncertain) classes.push("uncertain");
    if (isFixed(item.start)) classes.push("fixed");
    const holder = element("span", { className: classes.join(" ") });
    const units = isBeside ? holder : element("span");
    if (!isBeside) holder.append(units);
    holder.dataset.kind = kindName(item.kind);
    holder.title = `${kindName(item.kind)}, ${percent(item.score)}`;
    for (let unit = item.start; unit < item.end; unit += 1) {
      if (unit > item.start && hasGap(sentence, unit, model)) units.append(" ");
      const word = element("span", { className: "word" }, sentence.units[unit]);
      const made = isStatic
        ? element("span", { className: "unit" }, word)
        : element("button", { type: "button", className: "unit", tabIndex: -1 }, word);
      made.dataset.unit = unit;
      if (differs?.(unit)) made.classList.add("differs");
      if (!isStatic) made.append(element("span", { className: "hidden" }, spoken(item, unit, model, isUncertain, isFixed)));
      units.append(made);
    }
    // No line ends between the last unit and its label.
    const end = isBeside ? element("span", { className: "end" }, holder.lastChild) : holder;
    if (isBeside) holder.append(end);
    if (item.kind !== null) end.append(tagOf(item, isUncertain, isStatic));
    else if (isUncertain) end.append(element("span", { className: "score", ariaHidden: String(!isStatic) }, percent(item.score)));
    together.append(holder);
  }
  return line;
}

/** What a screen reader says after the unit itself. */
function spoken(item, unit, model, isUncertain, isFixed) {
  const parts = [kindName(item.kind)];
  if (model.hasSpans && item.kind !== null && item.end - item.start > 1) {
    parts.push(unit === item.start ? "begins" : unit === item.end - 1 ? "ends" : "inside");
  }
  parts.push(percent(item.score));
  if (isUncertain) parts.push("uncertain");
  if (isFixed(unit)) parts.push("fixed");
  return `, ${parts.join(", ")}`;
}

function tagOf(item, isUncertain, isStatic) {
  const tag = element("span", { className: "tag" }, kindName(item.kind));
  // Said by the units' buttons already.
  if (!isStatic) tag.ariaHidden = "true";
  if (isUncertain) tag.append(element("span", { className: "score" }, percent(item.score)));
  return tag;
}

/** Keyboard and pointer in the text: which units are selected. */
export class Selection {
  /**
   * @param list the list of sentences
   * @param spanOf the item at a place, as [start, end]
   * @param changed called with the selection whenever it changes
   */
  constructor(list, { spanOf, changed, hasSpans }) {
    this.list = list;
    this.spanOf = spanOf;
    this.changed = changed;
    this.hasSpans = hasSpans;
    this.current = null;
    this.anchor = null;
    this.marked = [];
    list.addEventListener("click", (event) => this.onClick(event));
    list.addEventListener("pointerdown", (event) => this.onPointer(event));
    list.addEventListener("pointerover", (event) => this.onPointer(event));
    list.addEventListener("focusin", (event) => this.onFocus(event));
  }

  place(target) {
    const unit = target.closest?.("button.unit");
    if (!unit) return null;
    return { sentence: Number(unit.closest("li").dataset.sentence), unit: Number(unit.dataset.unit) };
  }

  button({ sentence, unit }) {
    return this.list.children[sentence]?.querySelector(`button.unit[data-unit="${unit}"]`) ?? null;
  }

  onPointer(event) {
    const place = this.place(event.target);
    if (!place || event.pointerType !== "mouse") return;
    if (event.type === "pointerdown") {
      this.dragged = false;
      // The focus, which comes before the click, must not begin another selection.
      this.isExtending = event.shiftKey && this.current?.sentence === place.sentence;
      if (!event.shiftKey) this.dragFrom = place;
    } else if (event.buttons === 1 && this.dragFrom?.sentence === place.sentence && place.unit !== this.dragFrom.unit) {
      this.dragged = true;
      this.extend(this.dragFrom, place);
    }
  }

  onClick(event) {
    const place = this.place(event.target);
    if (!place) return;
    if (this.dragged) {
      this.dragged = false;
      return;
    }
    if (this.isExtending) this.extend(this.anchor, place);
    else this.select(place, { isOpening: true });
    this.isExtending = false;
  }

  onFocus(event) {
    const place = this.place(event.target);
    const now = this.current;
    if (!place || this.isExtending) return;
    if (now?.sentence === place.sentence && now.start <= place.unit && place.unit < now.end) return;
    this.select(place, { takesFocus: false });
  }

  /** Select the item at a place. */
  select(place, { takesFocus = true, isOpening = false } = {}) {
    const [start, end] = this.spanOf(place.sentence, place.unit);
    this.anchor = place;
    this.set({ sentence: place.sentence, start, end, unit: place.unit }, { takesFocus, isOpening });
  }

  /** Select all units between two places of a sentence. */
  extend(from, to) {
    if (!this.hasSpans()) return this.select(to);
    const start = Math.min(from.unit, to.unit);
    const end = Math.max(from.unit, to.unit) + 1;
    this.anchor = from;
    return this.set({ sentence: to.sentence, start, end, unit: to.unit }, { takesFocus: true });
  }

  set(selection, { takesFocus = false, isOpening = false } = {}) {
    const isSame =
      this.current && ["sentence", "start", "end", "unit"].every((name) => this.current[name] === selection[name]);
    this.current = selection;
    this.mark();
    if (takesFocus) this.button(selection)?.focus({ preventScroll: false });
    if (!isSame || isOpening) this.changed(selection, isOpening);
  }

  clear() {
    this.current = null;
    this.mark();
  }

  /** Show the selection; Tab reaches the unit that was last used. */
  mark() {
    for (const button of this.marked) {
      button.classList.remove("selected");
      button.tabIndex = -1;
    }
    const now = this.current;
    this.marked = [];
    for (let unit = now?.start; unit < now?.end; unit += 1) {
      const button = this.button({ sentence: now.sentence, unit });
      button?.classList.add("selected");
      if (button) this.marked.push(button);
    }
    const reached = now ? this.button(now) : this.list.querySelector("button.unit");
    if (!reached) return;
    reached.tabIndex = 0;
    this.marked.push(reached);
  }

  /** Move by arrow keys; false if the key means nothing here. */
  onKey(event) {
    const place = this.place(event.target);
    if (!place || event.ctrlKey || event.metaKey || event.altKey) return false;
    const size = (sentence) => this.list.children[sentence].querySelectorAll("button.unit").length;
    const count = this.list.children.length;
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      const unit = place.unit + (event.key === "ArrowLeft" ? -1 : 1);
      if (unit >= 0 && unit < size(place.sentence)) this.extend(this.anchor ?? place, { ...place, unit });
      return true;
    }
    const target = { ...place };
    if (event.key === "ArrowLeft") target.unit -= 1;
    else if (event.key === "ArrowRight") target.unit += 1;
    else if (event.key === "ArrowUp") target.sentence -= 1;
    else if (event.key === "ArrowDown") target.sentence += 1;
    else if (event.key === "Home") target.unit = 0;
    else if (event.key === "End") target.unit = size(place.sentence) - 1;
    else return false;
    if (target.unit < 0 && target.sentence > 0) {
      target.sentence -= 1;
      target.unit = size(target.sentence) - 1;
    } else if (target.unit >= size(place.sentence) && event.key === "ArrowRight") {
      target.sentence += 1;
      target.unit = 0;
    }
    if (target.sentence < 0 || target.sentence >= count || target.unit < 0) return true;
    target.unit = Math.min(target.unit, size(target.sentence) - 1);
    this.select(target);
    return true;
  }
}
