// Charts of a page: uPlot, with the keys, words and colours that it has not by itself.
// The server merges, smooths and samples; a zoom asks it for the window anew.

import { addressOf, keepAddress } from "./answers.js";
import { announce } from "./regions.js";

const uPlot = window.uPlot;
const box = document.getElementById("charts");
const DASHES = ["", "6 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 3", "8 2 2 2 2 2", "5 5", "14 3 3 3"];
const OWN = ["x", "scale", "smooth", "from", "to"];
const HEIGHT = 300;
const MOST_ROWS = 100;
const plots = new Map();
const hidden = new Set(new URLSearchParams(location.search).getAll("hide"));
let shown = null;
let asking = null;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const text = (value) => Number(value).toLocaleString(undefined, Number.isInteger(value) ? {} : { maximumSignificantDigits: 5 });
const isFaint = (line) => line.style.split(" ").includes("faint");
const group = (line) => (/^worker \d+$/.test(line.name) ? "each worker" : line.name.replace(/, raw$/, ""));

function parts(style) {
  const words = style.split(" ");
  const at = Number((words.find((word) => /^s\d$/.test(word)) || "s0").slice(1));
  const dash = DASHES[Number((words.find((word) => /^d\d$/.test(word)) || "d0").slice(1))];
  return { at, dash, words };
}

function asPlace(value) {
  return shown.x === "time" ? new Date(value * 1000).toLocaleString() : text(value);
}

function asText(value) {
  return shown.x === "time" ? asPlace(value) : `${asPlace(value)} ${shown.label}`;
}

// ------------------------------------------------------------------ the address

function query() {
  const here = new URLSearchParams(location.search);
  return new Map(OWN.filter((name) => here.get(name)).map((name) => [name, here.get(name)]));
}

function windowAsked() {
  const here = query();
  return here.get("from") && here.get("to") ? [Number(here.get("from")), Number(here.get("to"))] : null;
}

function change(values) {
  keepAddress(values);
  tellFiles();
}

const withQuery = (path) => addressOf(path, Object.fromEntries(query()));

function tellFiles() {
  for (const link of document.querySelectorAll("a[data-window]")) link.href = withQuery(link.dataset.window);
}

// --------------------------------------------------------------------- the data

async function load() {
  if (asking) asking.abort();
  const own = asking = new AbortController();
  const limit = setTimeout(() => own.abort(), 60000);
  document.dispatchEvent(new Event("shoal-ask"));
  try {
    const answer = await fetch(withQuery(box.dataset.series), { signal: own.signal });
    if (!answer.ok) return;
    show(await answer.json());
  } catch (error) {
    if (error.name !== "AbortError") return; // the page says that it reconnects
  } finally {
    clearTimeout(limit);
    if (asking === own) {
      asking = null;
      document.dispatchEvent(new Event("shoal-asked"));
    }
  }
}

// What the stream of a run brings: of a chart that is the same only the name.
function showChanges(found) {
  const known = new Map((shown ? shown.charts : []).map((chart) => [chart.name, chart]));
  const charts = found.charts.map((chart) => (chart.same ? known.get(chart.name) : chart));
  show({ ...found, charts: charts.filter(Boolean) });
}

function show(found) {
  const began = performance.now();
  const isOther = !shown || shown.x !== found.x;
  const hasOtherMarks = !shown || JSON.stringify(shown.marks) !== JSON.stringify(found.marks);
  shown = found;
  shown.isLog = new URLSearchParams(location.search).get("scale") === "log";
  const names = new Set(found.charts.map((chart) => chart.name));
  for (const [name, plot] of plots) if (!names.has(name)) { plot.remove(); plots.delete(name); }
  document.getElementById("no-charts").hidden = found.charts.length > 0;
  for (const chart of found.charts) {
    const known = plots.get(chart.name);
    if (known && !isOther && known.fits(chart, shown.isLog)) known.update(chart, hasOtherMarks);
    else {
      const plot = new Plot(chart, known);
      plots.set(chart.name, plot);
    }
  }
  for (const part of box.querySelectorAll("[data-chart-part]")) part.hidden = !part.querySelector("figure");
  requestAnimationFrame(() => { box.dataset.drawMs = String(Math.round(performance.now() - began)); });
  box.dataset.drawn = String(Number(box.dataset.drawn || 0) + 1);
}

// --------------------------------------------------------------------- a chart

class Plot {
  constructor(chart, before) {
    this.take(chart);
    this.isLog = shown.isLog;
    const label = `${chart.name} against ${shown.label}`;
    this.place = make("div", { class: "plot", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": label, "aria-describedby": "chart-keys" });
    this.readout = make("p", { class: "readout" });
    this.told = make("span", { class: "hidden", role: "status" });
    this.legend = make("ul", { class: "legend" });
    const tools = make("p", { class: "tools" },
      button("Zoom in", () => this.zoom(0.5)), button("Zoom out", () => this.zoom(2)),
      button("Whole", () => this.whole()), button("PNG", () => this.save()));
    for (const one of tools.children) one.setAttribute("aria-label", `${one.textContent}: ${chart.name}`);
    this.table = make("details", {}, make("summary", {}, `${chart.name} as a table`));
    this.table.open = Boolean(before && before.table.open);
    this.table.addEventListener("toggle", () => this.drawTable());
    this.figure = make("figure", {}, make("figcaption", {}, chart.name), this.place, this.readout, this.told, this.legend, tools, this.table);
    if (before) { before.figure.replaceWith(this.figure); before.destroy(); }
    else this.append(box.querySelector(`[data-chart-part="${chart.part}"]`));
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.drawLegend();
    this.uplot = new uPlot(this.options(), this.data(), this.place);
    this.size = new ResizeObserver(() => {
      const width = this.place.clientWidth;
      if (width > 0 && width !== this.uplot.width) this.uplot.setSize({ width, height: HEIGHT });
    });
    this.size.observe(this.place);
    this.isStale = false;
    this.isSeen = false; // until the observer says so, in the next frame
    this.sight = new IntersectionObserver((entries) => {
      this.isSeen = entries[entries.length - 1].isIntersecting;
      this.draw();
    }, { rootMargin: "200px" });
    this.sight.observe(this.place);
  }

  // A hidden part has no width, and a chart is drawn as wide as its place.
  append(part) {
    part.hidden = false;
    part.querySelector(".figures").append(this.figure);
  }

  // uPlot goes through all places for each of its lines. The faint ones are many, and
  // nothing is read from them: they are drawn behind it, each with its own points.
  take(chart) {
    this.chart = chart;
    this.lines = chart.lines.filter((line) => !isFaint(line));
    this.faint = chart.lines.filter(isFaint);
    if (!this.lines.length) [this.lines, this.faint] = [this.faint, []];
  }

  fits(chart, isLog) {
    const names = (one) => one.lines.map((line) => `${line.name}\n${line.style}`).join("\n");
    return isLog === this.isLog && names(chart) === names(this.chart);
  }

  update(chart, hasOtherMarks) {
    if (chart === this.chart && !hasOtherMarks) return;
    this.take(chart);
    this.isStale = true;
    this.draw();
    this.drawTable();
  }

  // One that is out of sight is drawn when it comes into sight.
  draw(isWanted = this.isSeen) {
    if (!this.isStale || !isWanted) return;
    this.isStale = false;
    this.uplot.setData(this.data());
  }

  // The values that are drawn, but those of single workers: at most 100 rows.
  drawTable() {
    const old = this.table.querySelector(".wide");
    if (!this.table.open) { if (old) old.remove(); return; }
    const lines = this.lines.filter((line) => !parts(line.style).words.includes("raw"));
    const table = document.createElement("table");
    row(table.createTHead(), "th", [shown.label, ...lines.map((line) => line.name)]);
    const body = table.createTBody();
    for (const x of places(lines)) row(body, "td", [asPlace(x), ...lines.map((line) => valueAt(line, x))]);
    if (old) { old.querySelector("table").replaceWith(table); return; }
    const label = `Table of ${this.chart.name}`;
    this.table.append(make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, table));
  }

  destroy() { this.size.disconnect(); this.sight.disconnect(); this.uplot.destroy(); }

  remove() { this.destroy(); this.figure.remove(); }

  data() {
    return uPlot.join(this.lines.map((line) => [line.x, line.y]));
  }

  window() {
    if (windowAsked()) return windowAsked();
    const xs = this.uplot ? this.uplot.data[0] : null;
    return xs && xs.length ? [xs[0], xs[xs.length - 1]] : null;
  }

  options() {
    const axis = (more) => ({
      stroke: () => colour("--quiet"), font: "12px system-ui, sans-serif",
      grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 }, ...more,
    });
    const series = this.lines.map((line) => {
      const { at, dash, words } = parts(line.style);
      const isBehind = words.includes("raw");
      return {
        label: line.name, stroke: () => colour(`--s${at}`), width: words.includes("bold") ? 2 : 1,
        alpha: isBehind ? 0.3 : 1, dash: dash ? dash.split(" ").map(Number) : undefined, spanGaps: true,
        show: !hidden.has(group(line)), points: { show: !isBehind && line.x.length <= 60, size: 5 },
      };
    });
    return {
      width: Math.max(200, this.place.clientWidth), height: HEIGHT, legend: { show: false },
      padding: [10, 16, 0, 0],
      scales: {
        x: { time: shown.x === "time", range: (_, low, high) => {
          if (windowAsked()) return windowAsked();
          const first = Math.min(low, ...this.faint.map((line) => line.x[0]));
          const last = Math.max(high, ...this.faint.map((line) => line.x[line.x.length - 1]));
          return first === last ? [first - 0.5, last + 0.5] : [first, last];
        } },
        y: { distr: this.isLog ? 3 : 1, range: (_, low, high) => this.range(low, high) },
      },
      axes: [axis({ label: shown.label, labelFont: "12px system-ui, sans-serif", labelSize: 20 }),
        axis({ size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : text(tick))) })],
      series: [{}, ...series],
      cursor: {
        drag: { x: true, y: false, setScale: false }, dataIdx: nearest,
        bind: { dblclick: () => () => { this.whole(); return null; } },
      },
      hooks: {
        setSelect: [(u) => { if (u.select.width > 4) this.select(u); }],
        setCursor: [(u) => this.read(u)],
        drawAxes: [(u) => this.drawFaint(u)],
        draw: [(u) => this.drawMarks(u)],
      },
    };
  }

  // Lowest and highest y, that of the faint lines too.
  range(low, high) {
    const [from, to] = windowAsked() || [-Infinity, Infinity];
    let [least, most] = [low === null ? Infinity : low, high === null ? -Infinity : high];
    for (const line of this.shownFaint()) {
      line.y.forEach((y, at) => {
        if (line.x[at] < from || line.x[at] > to) return;
        if (y < least) least = y;
        if (y > most) most = y;
      });
    }
    if (least > most) return [null, null];
    return this.isLog ? uPlot.rangeLog(least, most, 10, false) : uPlot.rangeNum(least, most, 0.1, true);
  }

  shownFaint() { return this.faint.filter((line) => !hidden.has(group(line))); }

  drawFaint(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const lines = this.shownFaint();
    ctx.globalAlpha = Math.min(0.3, Math.max(0.1, 3 / lines.length)); // many are a cloud
    ctx.lineWidth = devicePixelRatio;
    for (const line of lines) {
      ctx.strokeStyle = colour(`--s${parts(line.style).at}`);
      ctx.beginPath();
      line.x.forEach((x, at) => ctx.lineTo(u.valToPos(x, "x", true), u.valToPos(line.y[at], "y", true)));
      ctx.stroke();
    }
    ctx.restore();
  }

  select(u) {
    const low = u.posToVal(u.select.left, "x");
    const high = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.goTo(low, high);
  }

  goTo(from, to) {
    const [first, last] = span();
    const low = Math.max(from, first);
    const high = Math.min(to, last);
    if (low <= first && high >= last) { this.whole(); return; }
    if (!(high > low)) return;
    change({ from: String(Number(low.toPrecision(12))), to: String(Number(high.toPrecision(12))) });
    load();
  }

  whole() {
    if (!query().get("from")) return;
    change({ from: "", to: "" });
    load();
  }

  zoom(factor) {
    const window = this.window();
    if (!window) return;
    const { idx } = this.uplot.cursor;
    const middle = idx !== null && idx !== undefined && this.uplot.data[0][idx] !== undefined
      ? this.uplot.data[0][idx] : (window[0] + window[1]) / 2;
    const width = (window[1] - window[0]) * factor;
    const [first, last] = span();
    const low = Math.max(first, Math.min(middle - width / 2, last - width));
    this.goTo(low, low + width);
  }

  key(event) {
    const u = this.uplot;
    const last = u.data[0].length - 1;
    if (event.ctrlKey || event.metaKey || event.altKey || last < 0) return;
    const at = this.at === undefined ? -1 : this.at;
    const step = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const next = {
      ArrowRight: at + step, ArrowLeft: (at < 0 ? last + 1 : at) - step, Home: 0, End: last,
    }[event.key];
    if (next !== undefined) {
      this.at = Math.min(last, Math.max(0, next));
      const left = u.valToPos(u.data[0][this.at], "x");
      this.isByKey = true;
      u.setCursor({ left, top: HEIGHT / 3 });
      this.isByKey = false;
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Escape") this.whole();
    else return;
    event.preventDefault();
  }

  read(u) {
    const { idx } = u.cursor;
    if (idx === null || idx === undefined || u.cursor.left < 0) { this.readout.textContent = ""; return; }
    this.at = idx;
    const values = this.lines.flatMap((line, place) => {
      const value = u.data[place + 1][nearest(u, place + 1, idx)];
      if (!u.series[place + 1].show || value === undefined || value === null) return [];
      return [`${line.name} ${text(value)}`];
    });
    const x = u.data[0][idx];
    const near = (u.posToVal(6, "x") - u.posToVal(0, "x"));
    const marks = shown.marks.filter((mark) => Math.abs(mark.x - x) <= near).slice(0, 3).map((mark) => mark.text);
    const told = [asText(x), ...values, ...marks].join(" · ");
    this.readout.textContent = told;
    // What the pointer or a change of the run writes is seen, and not announced.
    if (this.isByKey) announce(this.told, told);
  }

  drawMarks(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const mark of shown.marks) {
      const x = u.valToPos(mark.x, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(mark.usual ? "--line" : "--bad");
      ctx.lineWidth = (mark.usual ? 1 : 1.5) * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  drawLegend() {
    const groups = new Map();
    for (const line of this.chart.lines) if (!groups.has(group(line)) || / raw$/.test(groups.get(group(line)).style)) groups.set(group(line), line);
    for (const [name, line] of groups) {
      const one = button(name, () => toggle(name));
      one.dataset.group = name;
      one.setAttribute("aria-pressed", String(!hidden.has(name)));
      one.prepend(key(line.style));
      this.legend.append(make("li", {}, one));
    }
  }

  toggle(name) {
    this.lines.forEach((line, place) => {
      if (group(line) === name) this.uplot.setSeries(place + 1, { show: !hidden.has(name) });
    });
    if (this.faint.some((line) => group(line) === name)) this.uplot.setData(this.data());
    for (const one of this.legend.querySelectorAll("button")) {
      if (one.dataset.group === name) one.setAttribute("aria-pressed", String(!hidden.has(name)));
    }
  }

  save() {
    this.draw(true);
    const from = this.uplot.ctx.canvas;
    const to = document.createElement("canvas");
    const room = 30 * devicePixelRatio;
    to.width = from.width;
    to.height = from.height + room;
    const ctx = to.getContext("2d");
    ctx.fillStyle = colour("--ground");
    ctx.fillRect(0, 0, to.width, to.height);
    ctx.fillStyle = colour("--text");
    ctx.font = `${14 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.fillText(`${this.chart.name} · ${document.title}`, 10 * devicePixelRatio, 20 * devicePixelRatio);
    ctx.drawImage(from, 0, room);
    to.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${this.chart.name.replace(/[^A-Za-z0-9._-]+/g, "-") || "chart"}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
}

// The lowest and highest place of the whole, which a window of it does not know.
function span() {
  const spans = shown.charts.flatMap((chart) => chart.lines).filter((line) => line.span).map((line) => line.span);
  return [Math.min(...spans.map(([low]) => low)), Math.max(...spans.map(([, high]) => high))];
}

function row(to, kind, texts) {
  const cells = texts.map((one, at) => (at ? make(kind, kind === "th" ? { scope: "col", class: "end" } : { class: "end" }, one)
    : make("th", { scope: kind === "th" ? "col" : "row" }, one)));
  to.insertRow().append(...cells);
}

// Places of a table: of each line as many, its first and last among them.
function places(lines) {
  const most = Math.max(2, Math.floor(MOST_ROWS / Math.max(1, lines.length)));
  const found = new Set();
  for (const { x } of lines) {
    const count = Math.min(most, x.length);
    for (let at = 0; at < count; at += 1) found.add(x[count > 1 ? Math.round(at * (x.length - 1) / (count - 1)) : 0]);
  }
  return [...found].sort((one, other) => one - other);
}

function valueAt(line, x) {
  const at = line.x.indexOf(x);
  return at < 0 ? "" : text(line.y[at]);
}

function make(tag, values, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(values)) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

function button(name, press) {
  const found = make("button", { type: "button" }, name);
  found.addEventListener("click", press);
  return found;
}

function key(style) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "key");
  svg.setAttribute("viewBox", "0 0 30 8");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(svg.namespaceURI, "line");
  line.setAttribute("class", `line ${style}`);
  for (const [name, value] of Object.entries({ x1: 0, x2: 30, y1: 4, y2: 4 })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function toggle(name) {
  if (!hidden.delete(name)) hidden.add(name);
  for (const plot of plots.values()) plot.toggle(name);
  change({ hide: [...hidden] });
}

// The point of a line that is nearest: lines have points at places of their own.
function nearest(u, series, at) {
  const values = u.data[series];
  if (!values || values[at] !== undefined) return at;
  const xs = u.data[0];
  let low = at, high = at;
  while (low >= 0 && values[low] === undefined) low -= 1;
  while (high < values.length && values[high] === undefined) high += 1;
  if (low < 0) return high < values.length ? high : at;
  if (high >= values.length) return low;
  return xs[at] - xs[low] <= xs[high] - xs[at] ? low : high;
}

// --------------------------------------------------------------------- the form

function choose(form) {
  const values = Object.fromEntries(new FormData(form));
  const isOther = (new URLSearchParams(location.search).get("x") || "samples") !== values.x;
  change({
    x: values.x === "samples" ? "" : values.x, scale: values.scale === "log" ? "log" : "",
    smooth: Number(values.smooth) ? values.smooth : "",
    ...(isOther ? { from: "", to: "" } : {}),
  });
  const told = document.getElementById("smooth-value");
  told.textContent = Number(values.smooth) ? values.smooth : "off";
  load();
}

if (box && uPlot) {
  const form = document.getElementById("chart-form");
  form.addEventListener("input", () => choose(form));
  form.addEventListener("submit", (event) => { event.preventDefault(); choose(form); });
  form.querySelector("button").hidden = true;
  const redraw = () => { for (const plot of plots.values()) { plot.uplot.redraw(false, true); } };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("shoal-theme", redraw);
  addEventListener("beforeprint", () => { for (const plot of plots.values()) plot.draw(true); });
  document.addEventListener("shoal-series", (event) => showChanges(event.detail));
  tellFiles();
  load();
}
