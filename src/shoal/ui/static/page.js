// What the page does by itself: theme, times in the reader's zone, filter, live changes.
// Everything here is a convenience: each page works without it.

const THEMES = ["system", "light", "dark"];
const theme = document.getElementById("theme");

function useTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.textContent = `Theme: ${name}`;
}

function remembered() {
  try { return localStorage.getItem("shoal-theme") || "system"; } catch { return "system"; }
}

useTheme(remembered());
theme.hidden = false;
theme.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(remembered()) + 1) % THEMES.length];
  try { localStorage.setItem("shoal-theme", next); } catch { /* for this page only */ }
  useTheme(next);
  document.dispatchEvent(new Event("shoal-theme"));
});

// Made once: toLocaleString makes a formatter for each of 1,000 rows.
const exactly = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const shortly = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const ofDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

function localTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.title = exactly.format(date);
    if (time.closest("tr[data-run]")) time.textContent = shortly.format(date);
    else if (time.closest(".log")) time.textContent = ofDay.format(date);
  }
}
localTimes(document);
document.addEventListener("shoal-times", (event) => localTimes(event.detail));

const filter = document.querySelector("#q");
const rows = [...document.querySelectorAll("#runs tbody tr")];
if (filter && rows.length) {
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = document.getElementById("count");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown.toLocaleString()} of ${rows.length.toLocaleString()} runs on this page`;
    const address = new URL(location.href);
    if (filter.value) address.searchParams.set("q", filter.value);
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
  });
}

// The list: rows of running runs are read again, and change where they are.
const table = document.getElementById("runs");

async function readAgainRows(these) {
  const address = new URL(table.dataset.rows, location.href);
  for (const row of these) address.searchParams.append("run", row.dataset.run);
  try {
    const answer = await fetch(address);
    const text = `<table><tbody>${await answer.text()}</tbody></table>`;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (answer.ok) these.forEach((row) => changeRow(row, fresh));
  } catch { /* the next look may be answered */ }
}

async function readRows() {
  const running = [...table.querySelectorAll('tr[data-state="running"]')].slice(0, 20);
  if (!running.length) return;
  if (!document.hidden) await readAgainRows(running);
  setTimeout(readRows, 3000);
}

// Sizes of runs on a storage cost a request each: they come after the list.
async function readSizes() {
  const unsized = [...table.querySelectorAll("tr[data-unsized]")];
  for (let at = 0; at < unsized.length; at += 20) await readAgainRows(unsized.slice(at, at + 20));
}

function changeRow(row, fresh) {
  const found = [...fresh.querySelectorAll("tr")].find((one) => one.dataset.run === row.dataset.run);
  if (!found) { row.remove(); return; }
  localTimes(found);
  row.dataset.state = found.dataset.state;
  [...row.cells].forEach((cell, at) => {
    const other = found.cells[at];
    if (at > 1 && cell.innerHTML !== other.innerHTML) cell.replaceChildren(...other.childNodes);
  });
}
// The list: runs that are gone vanish; new ones are told, so that no row moves.
const news = document.getElementById("news");
let newRuns = 0;

function offer(text) {
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = text;
  news.replaceChildren(link);
}

function watchList() {
  const source = new EventSource(news.dataset.events);
  source.addEventListener("list", (event) => {
    const told = JSON.parse(event.data);
    const gone = new Set(told.gone);
    for (const row of document.querySelectorAll("tr[data-run]")) if (gone.has(row.dataset.run)) row.remove();
    newRuns += told.new;
    news.dataset.total = Number(news.dataset.total) - gone.size + told.new;
    if (newRuns) offer(newRuns === 1 ? "1 new run: show it" : `${newRuns.toLocaleString()} new runs: show them`);
  });
  source.addEventListener("begun", (event) => {
    const { count } = JSON.parse(event.data);
    if (count !== null && count !== Number(news.dataset.total)) offer("The list has changed: show it");
    news.dataset.begun = "yes";
  });
  return source;
}
if (news) {
  let source = watchList();
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) source = watchList();
  });
}

if (table) {
  setTimeout(readRows, 3000);
  readSizes();
}

// A run: one stream brings the parts and charts that have changed.
const live = document.getElementById("live");
const linkState = document.getElementById("link-state");
const later = new Map(); // parts that would take the focus away from what is replaced
let stream = null;
let seen = live ? live.dataset.version : "";
let isRemoved = false;
// Charts ask for what is chosen, at first too; the stream begins or goes on after that.
let isDrawing = Boolean(document.getElementById("charts"));

// Changes what differs and nothing else: focus, selection and open details stay.
function change(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (!isAlike(old, fresh)) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { old.data = fresh.data; return; }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  const others = [...fresh.childNodes]; // one that is put into the page leaves that list
  [...old.childNodes].forEach((child, at) => change(child, others[at]));
}

function isAlike(old, fresh) {
  return old.nodeName === fresh.nodeName && old.childNodes.length === fresh.childNodes.length;
}

// Whether what has the focus is not among what is replaced.
function keepsFocus(old, fresh, focused) {
  if (!old.contains(focused)) return true;
  if (!isAlike(old, fresh)) return false;
  const at = [...old.childNodes].findIndex((child) => child.contains(focused));
  return at < 0 || keepsFocus(old.childNodes[at], fresh.childNodes[at], focused);
}

function changePart(name, text) {
  const old = live.querySelector(`[data-part="${name}"]`);
  if (!old) return;
  const [part] = new DOMParser().parseFromString(text, "text/html").body.children;
  if (!keepsFocus(old, part, document.activeElement)) { later.set(name, text); return; }
  later.delete(name);
  const open = [...old.querySelectorAll("details")].map((details) => details.open);
  part.querySelectorAll("details").forEach((details, at) => { details.open = Boolean(open[at]); });
  localTimes(part);
  if (part.dataset.title) document.title = part.dataset.title;
  change(old, part);
}

function showRemoved() {
  isRemoved = true;
  linkState.textContent = "This run was removed.";
  if (stream) stream.close();
}

function address() {
  const found = new URL(live.dataset.events, location.href);
  for (const [name, value] of new URLSearchParams(location.search)) found.searchParams.set(name, value);
  found.searchParams.set("seen", seen);
  return found;
}

function connect() {
  if (stream || document.hidden || isDrawing || isRemoved) return;
  stream = new EventSource(address());
  stream.addEventListener("open", () => { linkState.textContent = ""; });
  stream.addEventListener("change", (event) => {
    seen = event.lastEventId;
    const { parts, series } = JSON.parse(event.data);
    if (series) document.dispatchEvent(new CustomEvent("shoal-series", { detail: series }));
    for (const [name, text] of Object.entries(parts)) changePart(name, text);
  });
  stream.addEventListener("removed", showRemoved);
  stream.addEventListener("error", () => {
    linkState.textContent = "Reconnecting…";
    if (stream.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(connect, 2000);
    }
  });
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

if (live) {
  let wasAsked = false;
  document.addEventListener("shoal-ask", () => { wasAsked = isDrawing = true; disconnect(); });
  // Without charts, as their script has failed, the rest of the page is live.
  addEventListener("load", () => { if (!wasAsked) { isDrawing = false; connect(); } });
  document.addEventListener("shoal-asked", () => { isDrawing = false; connect(); });
  live.addEventListener("focusout", () => setTimeout(() => {
    for (const [name, text] of [...later]) changePart(name, text);
  }));
  connect();
  // Browsers have six connections to a server: pages in the background hold none.
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
}

// A form whose fields are checked as they are left, by the code of the command line.
const fresh = document.getElementById("new");

const checked = new WeakMap(); // field -> its value when it was checked last

async function check(field) {
  if (checked.get(field) === field.value) return;
  checked.set(field, field.value);
  const address = new URL(fresh.dataset.check, location.href);
  // A parameter is checked together with the others of its strategy.
  const name = field.name.startsWith("p.") ? "strategy" : field.name;
  address.searchParams.set("field", name);
  address.searchParams.set("value", fresh.elements[name].value);
  if (name === "strategy") {
    for (const one of fresh.querySelectorAll("fieldset:not([hidden]) [name]")) address.searchParams.set(one.name, one.value);
  }
  const told = document.getElementById(`${field.id}-error`);
  if (!told) return;
  try {
    const answer = await fetch(address);
    if (!answer.ok) return;
    const { error } = await answer.json();
    if (told.textContent !== error) told.textContent = error;
    field.setAttribute("aria-invalid", String(Boolean(error)));
    if (name === "strategy" && !error) clearErrors();
  } catch { /* the form is checked again when it is sent */ }
}

function clearErrors() {
  for (const field of fresh.querySelectorAll("#strategy, fieldset [name]")) {
    field.removeAttribute("aria-invalid");
    document.getElementById(`${field.id}-error`).textContent = "";
  }
}

function showParameters() {
  const name = fresh.elements.strategy.value.split(":")[0].trim();
  for (const one of fresh.querySelectorAll("[data-strategy]")) one.hidden = one.dataset.strategy !== name;
}
if (fresh) {
  fresh.elements.strategy.addEventListener("input", showParameters);
  showParameters();
  for (const field of fresh.querySelectorAll(".field input, .field select")) {
    field.addEventListener("change", () => check(field));
    field.addEventListener("blur", () => check(field));
  }
  fresh.addEventListener("submit", (event) => {
    const planning = document.getElementById("planning");
    if (event.submitter?.value === "plan") planning.textContent = planning.dataset.text;
  });
  // A page that the browser has kept says it no more.
  addEventListener("pageshow", () => { document.getElementById("planning").textContent = ""; });
}

// A program that was started: the page changes where it is until there is its run.
async function lookAgain() {
  const main = document.getElementById("main");
  try {
    const answer = await fetch(location.href);
    if (answer.redirected) { location.replace(answer.url); return; }
    const other = new DOMParser().parseFromString(await answer.text(), "text/html");
    const hadFocus = main.contains(document.activeElement);
    localTimes(other);
    document.title = other.title;
    change(main, other.getElementById("main"));
    if (hadFocus && document.activeElement === document.body) document.getElementById("main").focus();
  } catch { /* the next look may be answered */ }
  const again = document.querySelector("[data-again]");
  if (again) setTimeout(lookAgain, Number(again.dataset.again));
}
const again = document.querySelector("[data-again]");
if (again) setTimeout(lookAgain, Number(again.dataset.again));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "/" && filter) { event.preventDefault(); filter.focus(); }
});
