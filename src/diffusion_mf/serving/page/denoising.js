// The denoising view: for every word a stream of beliefs, from noise at the top to labels at the bottom.

import { colourClass, kindName, percent, splitLabel } from "./labels.js";
import { element } from "./text.js";

const WIDEST = 92;
const NARROWEST = 66;
const LONGEST = 116;
const GAP = 7;
const CALL_HEIGHT = 44;
const QUIET_HEIGHT = 7;
const QUIET_CHANGE = 0.02;
const POINTS = 8;
const SETTLED = 0.5;
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export class Denoising {
  constructor() {
    this.root = document.getElementById("ribbons");
    this.slider = document.getElementById("call");
    this.slider.addEventListener("input", () => {
      this.stop();
      this.show(Number(this.slider.value));
    });
    this.button = document.getElementById("play");
    this.button.addEventListener("click", () => (this.animation ? this.stop() : this.play()));
    this.data = null;
    /** the number of the sentence that is shown, and of the one that was asked for */
    this.drawn = null;
    this.sentence = null;
  }

  /** Draw the trajectory of a sentence: units, steps with t and beliefs, marginals, and the labels of their columns. */
  draw({ number, units, labels, steps, marginals, model, isFixed }) {
    this.stop();
    this.drawn = number;
    const uniform = units.map(() => labels.map(() => 1 / labels.length));
    const beliefs = [uniform, ...steps.map((step) => step.beliefs)];
    const heights = [0];
    for (let call = 1; call < beliefs.length; call += 1) {
      const change = Math.max(
        ...beliefs[call].map((row, unit) => Math.max(...row.map((value, column) => Math.abs(value - beliefs[call - 1][unit][column])))),
      );
      heights.push(heights[call - 1] + (change > QUIET_CHANGE || call === 1 ? CALL_HEIGHT : QUIET_HEIGHT));
    }
    const room = (this.root.clientWidth - 80) / units.length - GAP;
    this.width = Math.round(Math.max(NARROWEST, Math.min(WIDEST, room)));
    this.data = { units, labels, beliefs, marginals, heights, model, isFixed, times: steps.map((step) => step.t) };
    this.slider.max = steps.length;
    const height = heights.at(-1);
    this.columns = units.map((unit, index) => this.column(unit, index, height));
    this.root.replaceChildren(this.axis(height), ...this.columns.map(({ root }) => root));
    this.fillTable();
    this.show(steps.length);
    this.tell(null);
  }

  clear() {
    this.stop();
    this.data = null;
    this.drawn = null;
    this.sentence = null;
    this.root.replaceChildren();
    document.getElementById("beliefs").replaceChildren();
    this.tell(null);
  }

  axis(height) {
    const { heights, times } = this.data;
    const axis = element("div", { className: "axis", ariaHidden: "true" });
    axis.append(element("span", { className: "word" }, " "));
    const names = element("div", { className: "calls" });
    names.style.height = `${height}px`;
    let last = -Infinity;
    heights.forEach((place, call) => {
      const isLast = call === heights.length - 1;
      if (place - last < 14 || (!isLast && height - place < 14)) return;
      last = place;
      const name = element("span", {}, call === 0 ? "noise" : times.length === 1 ? "labels" : `t = ${times[call - 1]}`);
      name.style.top = `${place}px`;
      names.append(name);
    });
    axis.append(names);
    return axis;
  }

  column(unit, index, height) {
    const { labels, beliefs, heights, model } = this.data;
    // Long words are to be read.
    const width = Math.min(LONGEST, Math.max(this.width, 9 * [...unit].length + 8));
    const rows = beliefs.map((call) => call[index]);
    const final = rows.at(-1);
    const most = labels.map((_, column) => Math.max(...rows.map((row) => row[column])));
    const ranks = labels.map((_, column) => column).sort((one, other) => final[other] - final[one] || most[other] - most[one]);
    // The final label is in the middle, and its strongest rivals are next to it.
    const order = [];
    ranks.forEach((column, rank) => (rank % 2 ? order.unshift(column) : order.push(column)));
    const points = [];
    for (let call = 0; call + 1 < rows.length; call += 1) {
      for (let point = 0; point < POINTS; point += 1) {
        const eased = (1 - Math.cos((Math.PI * point) / POINTS)) / 2;
        const row = rows[call].map((value, column) => value + eased * (rows[call + 1][column] - value));
        points.push([heights[call] + (point / POINTS) * (heights[call + 1] - heights[call]), row]);
      }
    }
    points.push([height, final]);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    // Between many labels, lines would cover the noise.
    drawing.style.strokeWidth = Math.min(0.7, (0.15 * width) / labels.length);
    const edges = points.map(() => 0);
    for (const column of order) {
      const left = [];
      const right = [];
      points.forEach(([place, row], number) => {
        const total = row.reduce((sum, value) => sum + value, 0) || 1;
        left.push(`${(width * edges[number]).toFixed(1)} ${place.toFixed(1)}`);
        edges[number] += row[column] / total;
        right.push(`${(width * edges[number]).toFixed(1)} ${place.toFixed(1)}`);
      });
      const { boundary, kind } = splitLabel(labels[column], model);
      drawing.append(
        svg("path", {
          d: `M${left.join("L")}L${right.reverse().join("L")}Z`,
          class: `ribbon ${colourClass(kind, model)} boundary-${boundary || "none"}`,
        }),
      );
    }
    for (const place of heights.slice(1, -1)) {
      drawing.append(svg("line", { x1: 0, x2: width, y1: place, y2: place, class: "grid" }));
    }
    const settled = this.settledAt(index);
    drawing.append(svg("circle", { cx: width / 2, cy: Math.min(heights[settled], height - 7), r: 5, class: "ring" }));
    const veil = svg("rect", { x: -1, y: height, width: width + 2, height: 0, class: "veil" });
    const cursor = svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "cursor" });
    drawing.append(veil, cursor);
    const pill = element("button", { type: "button", className: "pill", "aria-describedby": "story" });
    const root = element(
      "div",
      { className: "column" },
      element("span", { className: "word", title: unit }, unit),
      drawing,
      pill,
      element("span", { className: "score" }),
    );
    root.style.width = `${width}px`;
    for (const event of ["pointerenter", "focusin", "click"]) root.addEventListener(event, () => this.tell(index));
    return { root, veil, cursor, pill, score: root.lastChild, ring: drawing.querySelector(".ring") };
  }

  /** The first call after which the final label has more than half of the belief until the end. */
  settledAt(index) {
    const { beliefs } = this.data;
    const final = best(beliefs.at(-1)[index]);
    let call = beliefs.length - 1;
    while (call > 1 && beliefs[call - 1][index][final] > SETTLED) call -= 1;
    return call;
  }

  /** Show the beliefs after a number of calls, which may lie between two. */
  show(position) {
    if (!this.data) return;
    const { heights, beliefs, labels, times, model } = this.data;
    const call = Math.floor(position);
    const next = Math.min(call + 1, heights.length - 1);
    const place = heights[call] + (position - call) * (heights[next] - heights[call]);
    const height = heights.at(-1);
    const name = call === 0 ? "noise" : `call ${call} of ${times.length}${times.length > 1 ? `, t = ${times[call - 1]}` : ""}`;
    this.slider.value = call;
    this.slider.setAttribute("aria-valuetext", name);
    document.getElementById("call-name").textContent = name;
    this.columns.forEach(({ veil, cursor, pill, score, ring }, index) => {
      veil.setAttribute("y", place);
      veil.setAttribute("height", Math.max(0, height - place + 1));
      cursor.setAttribute("y1", place);
      cursor.setAttribute("y2", place);
      cursor.classList.toggle("off", place >= height);
      ring.classList.toggle("off", Number(ring.getAttribute("cy")) > place + 8);
      const row = beliefs[call][index];
      const column = best(row);
      const isOpen = call === 0;
      const { kind } = splitLabel(labels[column], model);
      pill.className = `pill ${isOpen ? "k-none" : colourClass(kind, model)}`;
      pill.textContent = isOpen ? "?" : labels[column];
      pill.setAttribute("aria-label", `${this.data.units[index]}: ${isOpen ? "undecided" : `${labels[column]}, ${percent(row[column])}`}`);
      score.textContent = isOpen ? "" : percent(row[column]);
    });
  }

  play() {
    if (!this.data) return;
    const last = this.data.beliefs.length - 1;
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const seconds = Math.max(2.5, 0.45 * last);
    let start = null;
    this.button.textContent = "Stop";
    const frame = (now) => {
      start ??= now;
      const position = Math.min(last, ((now - start) / 1000 / seconds) * last);
      this.show(isCalm ? Math.floor(position) : position);
      if (position < last) this.animation = requestAnimationFrame(frame);
      else this.stop();
    };
    this.animation = requestAnimationFrame(frame);
  }

  stop() {
    if (this.animation) cancelAnimationFrame(this.animation);
    this.animation = null;
    this.button.textContent = "Play";
  }

  /** Tell the story of a word's label; a long sentence is moved until the word is in sight. */
  tell(index, { isScrolling = false } = {}) {
    const story = document.getElementById("story");
    this.columns?.forEach(({ root }, column) => root.classList.toggle("told", column === index));
    const isTold = index !== null && this.data;
    story.textContent = isTold ? this.story(index) : "Point at a word, or press its label, to read its story.";
    story.classList.toggle("empty", !isTold);
    if (!isTold || !isScrolling) return;
    const { offsetLeft, offsetWidth } = this.columns[index].root;
    this.root.scrollLeft = offsetLeft - this.root.offsetLeft - (this.root.clientWidth - offsetWidth) / 2;
  }

  story(index) {
    const { units, labels, beliefs, times, isFixed } = this.data;
    const rows = beliefs.slice(1).map((call) => call[index]);
    if (isFixed(index)) {
      return `“${units[index]}” is ${labels[best(rows.at(-1))]} in every call, for you have fixed it; the others are labelled around it.`;
    }
    const leaders = [];
    rows.forEach((row, call) => {
      const column = best(row);
      if (leaders.at(-1)?.column !== column) leaders.push({ column, call: call + 1, belief: row[column] });
    });
    const final = leaders.at(-1);
    const at = (call) => (times.length > 1 ? `call ${call} (t\u00a0=\u00a0${times[call - 1]})` : "its only call");
    const parts = [`“${units[index]}” starts with all ${labels.length} labels alike.`];
    const [first, ...later] = leaders;
    parts.push(`After ${at(first.call)}, ${labels[first.column]} leads with ${percent(first.belief)}.`);
    for (const leader of later) {
      parts.push(`${labels[leader.column]} overtakes it in ${at(leader.call)} with ${percent(leader.belief)}.`);
    }
    const settled = this.settledAt(index);
    if (times.length > 1) parts.push(`It is settled by ${at(settled)}.`);
    const rivals = labels
      .map((label, column) => ({ label, belief: Math.max(...rows.map((row) => row[column])) }))
      .filter(({ label, belief }) => label !== labels[final.column] && belief > 0.1)
      .sort((one, other) => other.belief - one.belief)
      .slice(0, 2);
    if (rivals.length) {
      parts.push(`Its rivals: ${rivals.map(({ label, belief }) => `${label}, up to ${percent(belief)}`).join("; ")}.`);
    }
    return parts.join(" ");
  }

  /** The same in words and numbers. */
  fillTable() {
    const { units, labels, beliefs, times } = this.data;
    const head = element("tr", {}, element("th", { scope: "col" }, "Call"));
    for (const unit of units) head.append(element("th", { scope: "col" }, unit));
    const body = times.map((t, call) => {
      const row = element("tr", {}, element("th", { scope: "row" }, times.length > 1 ? `${call + 1}, t = ${t}` : "1"));
      beliefs[call + 1].forEach((values) => {
        const column = best(values);
        row.append(element("td", {}, `${labels[column]} ${percent(values[column])}`));
      });
      return row;
    });
    document.getElementById("beliefs").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
  }

  /** The mean calibrated probability of every kind over a stretch of units, for the list of labels. */
  kindsOf(start, end) {
    if (!this.data) return new Map();
    const { labels, marginals, model } = this.data;
    const found = new Map();
    labels.forEach((label, column) => {
      const { kind } = splitLabel(label, model);
      let sum = 0;
      for (let unit = start; unit < end; unit += 1) sum += marginals[unit][column];
      found.set(kindName(kind), (found.get(kindName(kind)) ?? 0) + sum / (end - start));
    });
    return found;
  }
}

function best(row) {
  return row.reduce((winner, value, column) => (value > row[winner] ? column : winner), 0);
}
