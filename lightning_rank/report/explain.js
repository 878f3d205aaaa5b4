"use strict";
(() => {
const D = JSON.parse(document.getElementById("data").textContent), W = D.words;
const $ = (id) => document.getElementById(id);
const say = (key, values = {}) => W[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function shown(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  return Math.abs(value) >= 1e7 ? value.toExponential(3) : value.toFixed(digits);
}
const short = (value) => Number.isInteger(value) && Math.abs(value) < 1e7 ? String(value) : shown(value);
const signed = (value) => (value < 0 ? "−" : "+") + shown(Math.abs(value));

// The metrics -----------------------------------------------------------------------------------------------------------

// grades: in rank order, null where nobody judged; judged: all grades known of the query; k: null for the whole list.
// ties: where values are means over all orders of tied documents: ranks that are tied with the one above, and the grades of
// documents beyond the list that are tied with its last. Only the first `read` ranks earn anything in the values.
function compute(grades, judged, { k, gain, relevant, denominator }, ties = null, read = grades.length) {
  const ideal = judged.map((grade) => Math.max(grade, 0)).sort((a, b) => b - a);
  const top = ideal[0] ?? 0;
  const gainOf = (grade) => gain === "exp2" ? 2 ** grade - 1 : grade;
  // Divided by 2^top, which cancels in NDCG and never overflows.
  const scaled = (grade) => gain === "exp2" ? 2 ** (grade - top) - 2 ** -top : grade;
  const discount = (i) => k === null || i < k ? 1 / Math.log2(i + 2) : 0;
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  const rows = [], found = [];
  let dcg = 0, idealDcg = 0;
  grades.forEach((given, i) => {
    const grade = Math.max(given ?? 0, 0), idealGrade = ideal[i] ?? 0;
    const adds = gainOf(grade) * discount(i), isRelevant = grade >= relevant, counts = k === null || i < k;
    dcg += adds;
    idealDcg += gainOf(idealGrade) * discount(i);
    if (isRelevant && counts) found.push(i);
    rows.push({
      grade, isRelevant, counts, gain: gainOf(grade), discount: discount(i), adds, dcg, idealGrade, idealDcg,
      precision: isRelevant && counts ? found.length / (i + 1) : null,
      rr: isRelevant && counts && found.length === 1 ? 1 / (i + 1) : null,
    });
  });
  const idealCurve = [];
  ideal.forEach((grade, i) => idealCurve.push((idealCurve[i - 1] ?? 0) + gainOf(grade) * discount(i)));

  const total = ideal.filter((grade) => grade >= relevant).length;
  const seen = found.filter((i) => i < read), precisions = seen.map((i) => rows[i].precision);
  const size = k ?? Math.max(grades.length, 1), counted = Math.min(k ?? Infinity, read);
  const has = (value) => total > 0 ? value : NaN;
  const best = sum(ideal.map((grade, i) => scaled(grade) * discount(i)));
  const divisor = (hits) => denominator === "hits" ? Math.max(hits, 1)
    : denominator === "cutoff" && k !== null ? Math.min(total, k) : total;

  // Each rank of a tie has the mean gain of its documents, and one of the relevant ones with the same chance.
  let dcgHere = 0, normed = 0, area = 0, ap = 0, rr = 0, hits = 0, before = 0, noneYet = 1;
  for (let start = 0, end; start < Math.min(counted, grades.length); start = end) {
    for (end = start + 1; ties?.tied.includes(end);) end++;
    const beyond = end === grades.length ? ties?.beyond ?? [] : [];
    const members = [...grades.slice(start, end), ...beyond].map((grade) => Math.max(grade ?? 0, 0));
    const n = members.length, inside = Math.min(n, counted - start), good = members.filter((grade) => grade >= relevant).length;
    const gains = sum(members.map(gainOf)) / n, scaledGains = sum(members.map(scaled)) / n;
    // The mean sum of the precisions at the first `inside` ranks where `some` of the first `ranks` are relevant.
    const precisionsOf = (ranks, some) => some === 0 ? 0 : sum(Array.from({ length: inside }, (_, j) =>
      some / ranks * (before + 1 + (ranks > 1 ? j * (some - 1) / (ranks - 1) : 0)) / (start + j + 1)));
    let chances = [1];  // of each number of relevant documents at the ranks so far
    for (let j = 0; j < inside; j++) {
      dcgHere += gains * discount(start + j);
      normed += scaledGains * discount(start + j);
      rr += noneYet * good / (n - j) / (start + j + 1);
      noneYet *= 1 - good / (n - j);
      chances = [...chances, 0].map((chance, m) =>
        chance * (1 - (good - m) / (n - j)) + (m > 0 ? chances[m - 1] * (good - m + 1) / (n - j) : 0));
    }
    ap = sum(chances.map((chance, m) => chance > 0 ? chance * (area + precisionsOf(inside, m)) / divisor(before + m) : 0));
    area += precisionsOf(n, good);
    hits += good * inside / n;
    before += good;
  }
  const values = {
    ndcg: top > 0 ? normed / best : NaN,
    dcg: top > 0 ? dcgHere : NaN,
    map: has(ap),
    mrr: has(rr),
    precision: has(hits / size),
    recall: has(hits / Math.max(total, 1)),
  };
  // A mean over orders is not always one fraction.
  const told = (text, value, wanted) => Math.abs(value - wanted) < 1e-9 ? text : W.mean_of_orders;
  const how = {
    ndcg: `${shown(values.dcg, 3)} / ${shown(idealCurve.at(-1) ?? 0, 3)}`,
    map: told(`${shown(area, 3)} / ${short(divisor(hits))}`, ap, area / divisor(hits)),
    mrr: told(seen.length ? `1 / ${seen[0] + 1}` : "0", rr, seen.length ? 1 / (seen[0] + 1) : 0),
    precision: `${short(hits)} / ${size}`,
    recall: `${short(hits)} / ${total}`,
  };
  const terms = `(${precisions.map((value) => shown(value, 3)).join(" + ") || "0"}) / ${short(divisor(hits))}`;
  const inFull = { ...how, map: Math.abs(sum(precisions) - area) < 1e-9 ? terms : how.map };
  return { rows, values, how, inFull, total, found, idealCurve };
}

// State -----------------------------------------------------------------------------------------------------------------

const S = {
  query: 0, run: D.runs.length - 1, k: D.k ?? 10, whole: D.k === null, gain: D.gain, relevant: D.relevant,
  denominator: D.denominator, read: 0, timer: null,
};
const edits = new Map();  // of each query that was opened: grades, an order per run, what was before each change
const nameOf = (document) => D.queries[S.query].docs[document];
const current = () => {
  if (!edits.has(S.query)) {
    const query = D.queries[S.query];
    edits.set(S.query, { grades: [...query.grades], orders: query.runs.map((run) => [...run.order]), past: [] });
  }
  return edits.get(S.query);
};
const order = () => current().orders[S.run];

function limit() {  // ranks beyond which this page does not know the list
  const cut = D.queries[S.query].runs.filter((run) => run.retrieved > run.order.length).map((run) => run.order.length);
  return Math.min(...cut, Infinity);
}
function cutoff() {
  const k = Math.min(S.whole ? Infinity : S.k, limit());
  return k === Infinity ? null : k;
}
const options = () => ({ k: cutoff(), gain: S.gain, relevant: S.relevant, denominator: S.denominator });
const judged = (grades) => [
  ...grades.filter((grade) => grade !== null),
  ...D.queries[S.query].rest.flatMap(([grade, count]) => Array(count).fill(grade)),
];
const isOriginal = (ranking, run) => ranking.every((document, i) => document === D.queries[S.query].runs[run].order[i]);
function computed(grades, ranking, run, read) {  // who moves a document chooses an order: then nothing is tied
  const ties = D.ties === "average" && isOriginal(ranking, run) ? D.queries[S.query].runs[run] : null;
  return compute(ranking.map((d) => grades[d]), judged(grades), options(), ties, read);
}

function remember() {
  const { grades, orders, past } = current();
  past.push({ grades: [...grades], orders: orders.map((one) => [...one]) });
}
function move(document, to) {
  const list = order(), from = list.indexOf(document);
  list.splice(to, 0, list.splice(from, 1)[0]);
}

const METRICS = ["ndcg", "dcg", "map", "mrr", "precision", "recall"];
const LABELS = { ndcg: "NDCG", dcg: "DCG", map: "AP", mrr: "RR", precision: "P", recall: "R" };
const labelled = (metric) => LABELS[metric] + (cutoff() === null ? "" : `@${cutoff()}`);

let pending;
function announce(text) {
  clearTimeout(pending);  // only the last of many quick moves
  pending = setTimeout(() => { $("live").textContent = text; }, 150);
}
function tell(text) {
  const { values } = computed(current().grades, order(), S.run);
  announce(`${text} ` + ["ndcg", "map", "mrr"].map((m) => say("now", { metric: labelled(m), value: shown(values[m]) })).join(", "));
}
function moved(document) {
  const list = order();
  tell(say("moved", { doc: nameOf(document), rank: list.indexOf(document) + 1, n: list.length }));
}

// Rows ------------------------------------------------------------------------------------------------------------------

const COLUMNS = ["move", "rank", "doc", "grade", "gain", "discount", "adds", "dcg", "ideal", "precision", "rr"];
let rowOf = new Map(), active = 0;

function build() {
  rowOf = new Map();
  const query = D.queries[S.query];
  for (const document of order()) {
    const handle = make("button", { type: "button", class: "handle" }, "⠿");
    const up = make("button", { type: "button", class: "up", "aria-label": say("up", { doc: nameOf(document) }) }, "↑");
    const down = make("button", { type: "button", class: "down", "aria-label": say("down", { doc: nameOf(document) }) }, "↓");
    const grade = make("input", {
      type: "number", min: 0, step: "any", inputmode: "decimal", placeholder: "–",
      "aria-label": say("grade_of", { doc: nameOf(document) }),
    });
    const cells = Object.fromEntries(COLUMNS.map((name) => {
      if (name === "doc") return [name, make("th", { role: "rowheader", scope: "row" })];
      const kind = name === "move" ? "move" : `n ${name}`;
      return [name, make("td", { role: "cell", class: kind, "data-label": W[`col_${name}`] })];
    }));
    cells.move.append(handle, " ", up, " ", down);
    cells.grade.append(grade);
    const text = query.texts?.[document];
    const details = make("small");
    cells.doc.append(make("span", {}, nameOf(document)), ...(text ? [make("small", { class: "text" }, text)] : []), details);
    const row = make("tr", { role: "row", "data-document": nameOf(document) }, ...Object.values(cells));
    rowOf.set(document, { row, cells, handle, up, down, grade, details });

    const by = (step) => () => {
      const to = order().indexOf(document) + step;
      if (to < 0 || to >= order().length) return;
      remember(); move(document, to); render(document); moved(document);
    };
    up.addEventListener("click", by(-1));
    down.addEventListener("click", by(1));
    handle.addEventListener("pointerdown", (event) => drag(event, document));
    grade.addEventListener("change", () => {
      const given = grade.value.trim() === "" ? null : Number(grade.value);
      if (grade.validity.badInput || (given !== null && !(given >= 0 && Number.isFinite(given)))) { render(); return; }
      if (given === current().grades[document]) return;
      remember(); current().grades[document] = given; render();
      tell(say("graded", { doc: nameOf(document), grade: given ?? W.unjudged }));
    });
    row.addEventListener("focusin", () => { setActive(order().indexOf(document)); });
    row.addEventListener("keydown", (event) => keys(event, document));
  }
  $("rows").replaceChildren(...order().map((document) => rowOf.get(document).row));
}

function setActive(index) {  // one row is reached by Tab, the others by arrow keys
  active = Math.max(0, Math.min(index, order().length - 1));
  order().forEach((document, i) => {
    const { handle, up, down, grade } = rowOf.get(document);
    for (const control of [handle, up, down, grade]) control.tabIndex = i === active ? 0 : -1;
  });
}

function keys(event, document) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key], list = order(), at = list.indexOf(document);
  if (event.altKey && step) {
    event.preventDefault();
    const to = event.shiftKey ? (step < 0 ? 0 : list.length - 1) : at + step;
    if (to < 0 || to >= list.length || to === at) return;
    remember(); move(document, to); render(document); moved(document);
    rowOf.get(document).row.scrollIntoView({ block: "nearest" });
    return;
  }
  const to = step ? at + step : { Home: 0, End: list.length - 1 }[event.key];
  if (to === undefined || event.target.matches("input") || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const other = rowOf.get(list[to]);
  if (other) other[["handle", "up", "down"].find((name) => event.target.classList.contains(name)) ?? "handle"].focus();
}

// Rows are arranged around `fixed`, which is never taken out of the page, so that it keeps focus and pointer.
function arrange(fixed) {
  const body = $("rows");
  const anchor = rowOf.get(fixed)?.row ?? [...rowOf.values()].find(({ row }) => row.contains(document.activeElement))?.row;
  let below = !anchor;
  for (const one of order()) {
    const { row } = rowOf.get(one);
    if (row === anchor) below = true;
    else if (below) body.append(row);
    else body.insertBefore(row, anchor);
  }
}

function drag(event, document) {
  if (event.button !== 0 || !event.isPrimary) return;
  event.preventDefault();
  const { handle, row } = rowOf.get(document), before = [...order()];
  handle.focus({ preventScroll: true });
  remember();
  row.classList.add("dragged");
  const followed = (e) => {
    const others = order().filter((one) => one !== document).map((one) => rowOf.get(one).row.getBoundingClientRect());
    const to = others.filter((box) => (box.top + box.bottom) / 2 < e.clientY).length;
    if (to !== order().indexOf(document)) { move(document, to); render(document); moved(document); }
    const edge = e.clientY < 50 ? -14 : e.clientY > window.innerHeight - 50 ? 14 : 0;
    if (edge) window.scrollBy(0, edge);
  };
  const ended = (e) => {
    if (e.type === "keydown" && e.key !== "Escape") return;
    for (const [type, listener] of listeners) window.removeEventListener(type, listener);
    row.classList.remove("dragged");
    if (e.type !== "pointerup") { current().orders[S.run] = before; render(document); }
    if (order().every((one, i) => one === before[i])) current().past.pop();
    render(document);
  };
  const listeners = [["pointermove", followed], ["pointerup", ended], ["pointercancel", ended], ["keydown", ended]];
  for (const [type, listener] of listeners) window.addEventListener(type, listener);
}

// What is shown -----------------------------------------------------------------------------------------------------------

function put(element, value, digits) {
  element.textContent = value === null ? "" : shown(value, digits);
  if (value === null) element.removeAttribute("data-value");
  else element.dataset.value = String(value);
}

function render(fixed = null) {
  const query = D.queries[S.query], state = current(), list = order(), { grades } = state;
  S.read = Math.min(S.read, list.length);
  const all = computed(grades, list, S.run), result = computed(grades, list, S.run, S.read);
  arrange(fixed);
  const tied = new Set(isOriginal(list, S.run) ? query.runs[S.run].tied.flatMap((i) => [i - 1, i]) : []);
  const most = Math.max(...all.rows.map((row) => row.adds), 0) || 1;
  const elsewhere = D.runs.length > 1 ? state.orders[1 - S.run] : null;
  // A list that is cut may hold the document further down.
  const absent = elsewhere && query.runs[1 - S.run].retrieved > elsewhere.length ? "not_in_first" : "not_in";
  list.forEach((document, i) => {
    const { row, cells, handle, up, down, grade, details } = rowOf.get(document), at = all.rows[i];
    handle.setAttribute("aria-label", say("handle", { doc: nameOf(document), rank: i + 1, n: list.length }));
    up.setAttribute("aria-disabled", i === 0);
    down.setAttribute("aria-disabled", i === list.length - 1);
    cells.rank.textContent = `${i + 1}${tied.has(i) ? "=" : ""}`;
    cells.rank.title = tied.has(i) ? W.tied : "";
    if (grade !== window.document.activeElement || Number(grade.value) !== grades[document]) grade.value = grades[document] ?? "";
    const rank = elsewhere ? elsewhere.indexOf(document) + 1 : 0;
    details.textContent = [
      ...(at.isRelevant ? [W.is_relevant] : []),
      ...(elsewhere ? [say(rank ? "rank_in" : absent, { rank, run: D.runs[1 - S.run], n: elsewhere.length })] : []),
      ...(grades[document] === null ? [W.unjudged] : []),
    ].join(" · ");
    cells.gain.textContent = short(at.gain);
    cells.gain.dataset.value = at.gain;
    put(cells.discount, at.discount);
    const part = Math.min(at.adds / most, 1) || 0;
    cells.adds.replaceChildren(...(part ? [make("i", { style: `width:${part * 100}%` })] : []), make("span", {}, shown(at.adds)));
    cells.adds.dataset.value = at.adds;
    put(cells.dcg, at.dcg);
    put(cells.ideal, at.idealDcg);
    put(cells.precision, at.precision);
    put(cells.rr, at.rr);
    row.classList.toggle("relevant", at.isRelevant);
    row.classList.toggle("beyond", !at.counts);
    row.classList.toggle("cut", i + 1 === cutoff() && i + 1 < list.length);
    row.classList.toggle("unread", i >= S.read);
    row.classList.toggle("read", i === S.read - 1 && S.read < list.length);
  });
  const focused = list.findIndex((document) => rowOf.get(document).row.contains(window.document.activeElement));
  setActive(focused >= 0 ? focused : active);
  $("undo").setAttribute("aria-disabled", state.past.length === 0);

  const original = computed(query.grades, query.runs[S.run].order, S.run).values;
  const other = D.runs.length > 1 ? computed(grades, state.orders[1 - S.run], 1 - S.run).values : null;
  $("tiles").replaceChildren(...METRICS.map((metric) => {
    const value = result.values[metric], change = all.values[metric] - original[metric];
    const tile = make("div", { "data-metric": metric },
      make("dt", {}, labelled(metric)),
      make("dd", {}, make("data", { class: "value", value: String(value) }, Number.isNaN(value) ? W.undefined : shown(value))),
      make("dd", { class: "how" }, Number.isNaN(value) || !result.how[metric] ? "" : `= ${result.how[metric]}`));
    if (Math.abs(change) > 5e-5) {
      tile.append(make("dd", { class: change > 0 ? "win" : "loss" }, say("your_changes", { d: signed(change) })));
    }
    if (other) tile.append(make("dd", {}, say("other_run", { run: D.runs[1 - S.run], v: shown(other[metric]) })));
    if (metric !== "dcg") tile.append(make("span", { class: "bar", style: `width:${(value || 0) * 100}%` }));
    return tile;
  }));
  for (const metric of METRICS) {
    const here = $(`here-${metric}`);
    if (here) here.textContent = `${labelled(metric)} = ${all.inFull[metric]} = ${shown(all.values[metric])}`;
  }
  notes(all, tied.size > 0 || (isOriginal(list, S.run) && query.runs[S.run].beyond.length > 0));
  replayed(all);
  charts(all);
}

function notes(all, hasTies) {
  const query = D.queries[S.query], run = query.runs[S.run], listed = all.rows.filter((row) => row.isRelevant).length;
  const values = D.runs.map((name, i) => `${name} ${shown(query.values[i])}`).join(", ");
  const lines = [say("library", { measure: D.measure, values })];
  if (!run.order.length) lines.push(W.note_empty);
  if (all.total === 0) lines.push(W.note_undefined);
  if (all.total > listed) lines.push(say("note_missing", { n: all.total - listed }));
  if (limit() < Infinity) lines.push(say("note_shown", { n: limit(), all: Math.max(...query.runs.map((one) => one.retrieved)) }));
  if (hasTies && D.ties === "average") lines.push(W.note_tied);
  $("notes").replaceChildren(...lines.map((line) => make("p", {}, line)));
}

function replayed(all) {
  const n = order().length, i = S.read, at = all.rows[i - 1];
  $("step").max = n;
  $("step").value = i;
  $("steps").textContent = say("step_text", { i, n });
  $("step").setAttribute("aria-valuetext", $("steps").textContent);
  $("back").setAttribute("aria-disabled", i === 0);
  $("on").setAttribute("aria-disabled", i === n);
  let text = i === 0 ? `${W.story_start} ${W.replay_hint}` : i === n ? `${say("story_end", { n })} ${W.replay_hint}` : "";
  if (i > 0 && i < n) {
    const document = order()[i - 1], found = all.found.filter((place) => place < i);
    const parts = [say("story", {
      rank: i, doc: nameOf(document), grade: current().grades[document] ?? W.unjudged, gain: short(at.gain),
      discount: shown(at.discount), adds: shown(at.adds), dcg: shown(at.dcg), ideal: shown(at.idealDcg),
    })];
    if (!at.counts) parts.push(W.story_beyond);
    if (at.precision !== null) parts.push(say("story_relevant", { hits: found.length, rank: i, precision: shown(at.precision) }));
    if (at.rr !== null) parts.push(say("story_first", { rank: i }));
    text = parts.join(" ");
  }
  $("story").textContent = text;
}

function step(to) {
  S.read = Math.max(0, Math.min(to, order().length));
  render();
  announce($("story").textContent);
}
function stop() {
  clearInterval(S.timer);
  S.timer = null;
  $("play").textContent = `▶ ${W.play}`;
}
$("play").addEventListener("click", () => {
  if (S.timer) { stop(); return; }
  step(S.read >= order().length ? 0 : S.read);
  $("play").textContent = `⏸ ${W.pause}`;
  S.timer = setInterval(() => { step(S.read + 1); if (S.read >= order().length) stop(); }, 1200);
});
$("step").addEventListener("input", () => { stop(); step(Number($("step").value)); });
$("back").addEventListener("click", () => { stop(); step(S.read - 1); });
$("on").addEventListener("click", () => { stop(); step(S.read + 1); });

// Pictures --------------------------------------------------------------------------------------------------------------

function picture(box, label, draw) {
  const width = Math.max($(box).clientWidth, 200), height = 210, left = 40, bottom = 22;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const add = (tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  const axes = (n, most) => {
    const x = (rank) => left + (rank / n) * (width - left - 6), y = (value) => height - bottom - (value / most) * (height - bottom - 12);
    add("path", { d: `M${left} 8V${y(0)}H${width - 4}`, fill: "none", stroke: "var(--strong)" });
    for (const value of [0, most / 2, most]) add("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, short(Math.round(value * 100) / 100).replace(/00$/, ""));
    const every = Math.ceil(n / 10);
    for (let rank = 1; rank <= n; rank += every) add("text", { x: x(rank - 0.5), y: height - 6, "text-anchor": "middle" }, rank);
    return { x, y };
  };
  draw(add, axes);
  $(box).replaceChildren(svg);
}

function charts({ rows, idealCurve }) {
  const n = Math.max(rows.length, 1), gains = rows.map((row) => row.gain);
  const most = Math.max(...gains, 0) || 1;
  const bright = (i) => i < S.read ? 1 : 0.25;
  picture("chart-adds", say("chart_adds_label", { text: rows.map((row, i) => `${i + 1}: ${shown(row.adds, 2)}`).join(", ") }), (add, axes) => {
    const { x, y } = axes(n, most);
    rows.forEach((row, i) => {
      const place = { x: x(i + 0.12), width: x(0.76) - x(0) };
      add("rect", { ...place, y: y(row.gain), height: y(0) - y(row.gain), fill: "none", stroke: "var(--strong)" });
      add("rect", { ...place, y: y(row.adds), height: y(0) - y(row.adds), fill: "var(--blue)", opacity: bright(i) });
    });
    const curve = rows.filter((row) => row.counts).map((row, i) => `${x(i + 0.5)} ${y(row.discount * most)}`).join("L");
    if (curve) add("path", { d: `M${curve}`, fill: "none", stroke: "var(--orange)", "stroke-width": 2, "stroke-dasharray": "5 4" });
  });
  const depth = Math.max(n, Math.min(idealCurve.length, cutoff() ?? Infinity, 100));
  const reach = idealCurve.length ? idealCurve.at(-1) : 0;
  const last = rows.at(-1)?.dcg ?? 0;
  picture("chart-dcg", say("chart_dcg_label", { dcg: shown(last), ideal: shown(reach) }), (add, axes) => {
    const { x, y } = axes(depth, Math.max(reach, last) || 1);
    const steps = (values) => values.map((value, i) => `V${y(value)}H${x(i + 1)}`).join("");
    const read = rows.slice(0, S.read).map((row) => row.dcg);
    if (read.length) add("path", { d: `M${x(0)} ${y(0)}${steps(read)}V${y(0)}Z`, fill: "var(--blue)", opacity: 0.35 });
    add("path", { d: `M${x(0)} ${y(0)}${steps(rows.map((row) => row.dcg))}`, fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
    const best = Array.from({ length: depth }, (_, i) => idealCurve[Math.min(i, idealCurve.length - 1)] ?? 0);
    add("path", { d: `M${x(0)} ${y(0)}${steps(best)}`, fill: "none", stroke: "var(--orange)", "stroke-width": 2, "stroke-dasharray": "5 4" });
  });
}

// Controls --------------------------------------------------------------------------------------------------------------

function setting(id, read) {
  $(id).addEventListener("change", () => {
    const value = read($(id));
    $(id).setAttribute("aria-invalid", value === null);
    if (value === null) return;
    S[id] = value;
    if (id === "k") S.whole = false;
    settings(); render(); tell("");
  });
}
function settings() {  // what is in force: a list that is cut has no other cutoff
  $("k").value = cutoff() ?? "";
  for (const id of ["k", "relevant"]) $(id).setAttribute("aria-invalid", false);
  $("whole").checked = cutoff() === null;
  $("gain").value = S.gain;
  $("relevant").value = S.relevant;
  $("denominator").value = S.denominator;
}
setting("k", (field) => Number.isInteger(Number(field.value)) && Number(field.value) >= 1 ? Number(field.value) : null);
setting("whole", (field) => field.checked);
setting("gain", (field) => field.value);
setting("relevant", (field) => Number(field.value) > 0 ? Number(field.value) : null);
setting("denominator", (field) => field.value);

$("undo").addEventListener("click", () => {
  const state = current(), before = state.past.pop();
  if (!before) return;
  Object.assign(state, before);
  render(); tell(W.undone);
});
$("reset").addEventListener("click", () => {
  const query = D.queries[S.query];
  remember();
  current().grades = [...query.grades];
  current().orders[S.run] = [...query.runs[S.run].order];
  S.read = order().length;
  render(); tell(W.was_reset);
});
$("ideal").addEventListener("click", () => {
  remember();
  const { grades } = current();
  order().sort((a, b) => Math.max(grades[b] ?? 0, 0) - Math.max(grades[a] ?? 0, 0));
  render(); tell(W.is_ideal);
});

// Queries ---------------------------------------------------------------------------------------------------------------

function difference(query) {
  const [a, b] = query.values;
  return a === null || b === null || b === undefined ? null : b - a;
}
const orders = {
  loss: (q) => difference(q) === null ? Infinity : difference(q) * D.better,
  win: (q) => difference(q) === null ? Infinity : -difference(q) * D.better,
  low: (q) => q.values.at(-1) ?? Infinity,
  high: (q) => q.values.at(-1) === null ? Infinity : -q.values.at(-1),
};
let visible = [];

function list() {
  const text = $("search").value.trim().toLowerCase(), by = $("sort").value;
  visible = D.queries.map((query, i) => [query, i]).filter(([query]) => `${query.id} ${query.text ?? ""}`.toLowerCase().includes(text));
  if (by === "id") visible.sort(([a], [b]) => a.id.localeCompare(b.id, undefined, { numeric: true }));
  else visible.sort(([a], [b]) => { const x = orders[by](a), y = orders[by](b); return x === y ? 0 : x < y ? -1 : 1; });
  $("found").textContent = say("found", { n: visible.length, total: D.queries.length })
    + (D.total > D.queries.length ? ` ${say("left_out", { n: D.queries.length, total: D.total })}` : "");
  $("list").replaceChildren(...visible.map(([query, i]) => {
    const d = difference(query), value = d ?? query.values.at(-1);
    const kind = d === null || d === 0 ? "number" : `number ${d * D.better < 0 ? "loss" : "win"}`;
    const button = make("button", { type: "button", "aria-current": i === S.query },
      make("span", {}, query.id), make("span", { class: kind }, d === null ? shown(value) : signed(d)),
      ...(query.text ? [make("span", { class: "text" }, query.text)] : []));
    button.addEventListener("click", () => {
      open(i);
      if (window.matchMedia("(max-width: 1120px)").matches) { $("index").open = false; $("query").focus(); }
    });
    return make("li", {}, button);
  }));
}
$("search").addEventListener("input", list);
$("sort").addEventListener("change", list);
$("list").addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const buttons = [...$("list").querySelectorAll("button")];
  buttons[buttons.indexOf(document.activeElement) + step]?.focus();
});
function neighbour(by) {
  const at = visible.findIndex(([, i]) => i === S.query), to = visible[at + by];
  if (to) open(to[1]);
}
$("previous").addEventListener("click", () => neighbour(-1));
$("next").addEventListener("click", () => neighbour(1));

function open(i) {
  stop();
  S.query = i;
  [...$("list").querySelectorAll("button")].forEach((button, at) => button.setAttribute("aria-current", visible[at][1] === i));
  const query = D.queries[i];
  $("query").textContent = say("query", { id: query.id });
  $("text").textContent = query.text ?? "";
  active = 0;
  show();
  tell(say("query", { id: query.id }));
}
function show() {
  S.read = order().length;
  $("whole").disabled = limit() < Infinity;
  settings(); build(); render();
}

for (const name of COLUMNS) $("heads").append(make("th", { role: "columnheader", scope: "col", class: name === "doc" || name === "move" ? "l" : "" }, W[`col_${name}`]));
D.runs.forEach((name, i) => {
  const radio = make("input", { type: "radio", name: "run", value: i });
  radio.checked = i === S.run;
  radio.addEventListener("change", () => { stop(); S.run = i; show(); tell(say("shows_run", { run: name })); });
  $("runs").append(make("label", {}, radio, name));
});
for (const by of [...(D.runs.length > 1 ? ["loss", "win"] : []), "low", "high", "id"]) $("sort").append(make("option", { value: by }, W[`sort_${by}`]));
for (const metric of ["ndcg", "map", "mrr", "precision", "recall"]) {
  $("about").append(make("details", {}, make("summary", {}, W[`about_${metric}`]), make("p", {}, W[`about_${metric}_what`]), make("dl", {},
    make("dt", {}, W.here), make("dd", { id: `here-${metric}` }),
    make("dt", {}, W.when), make("dd", {}, W[`about_${metric}_when`]),
    make("dt", {}, W.misread), make("dd", {}, W[`about_${metric}_misread`]))));
}
if (D.queries.length === 1) { $("layout").classList.add("single"); $("layout").querySelector("nav").hidden = true; $("previous").hidden = $("next").hidden = true; }
if (window.matchMedia("(max-width: 1120px)").matches) $("index").open = false;
new ResizeObserver(() => charts(computed(current().grades, order(), S.run))).observe($("chart-adds"));
list(); open(0);
})();
