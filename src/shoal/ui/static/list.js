// The list of runs: its filter, what is chosen, and live changes. The address of the page
// holds what is found and chosen. The list works without this file.

import { addressOf, fetchPage, keepAddress, streamOf } from "./answers.js";
import { announce } from "./regions.js";

const search = document.getElementById("filter");
const filter = document.getElementById("q");
const news = document.getElementById("news");

const list = () => document.getElementById("list");
const allRows = () => [...document.querySelectorAll("tr[data-run]")];
const said = (number) => number.toLocaleString();
const runs = (number) => (number === 1 ? "1 run" : `${said(number)} runs`);

// ------------------------------------------------------------------ filter and choice

function chosen() {
  const form = document.getElementById("choose");
  return form ? new FormData(form).getAll("run") : [];
}

// What is seen changes at once; what is read out follows.
function tell(name, text) {
  document.getElementById(name).textContent = text;
  announce(document.getElementById(`${name}-told`), text);
}

// The server filters by the same texts, so that a reload shows the same rows.
function showRows() {
  if (!list()) return;
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = allRows();
  for (const row of rows) row.hidden = !words.every((word) => row.dataset.text.includes(word));
  const shown = rows.filter((row) => !row.hidden).length;
  const [whole, where] = list().dataset.pages ? [rows.length, " on this page"] : [Number(news.dataset.total), ""];
  tell("count", `${said(shown)} of ${runs(whole)}${where}`);
  showChosen();
}

// Servers and proxies refuse long addresses.
function fitting(names) {
  let room = 6000;
  return names.filter((name) => (room -= encodeURIComponent(name).length + "&chosen=".length) > 0);
}

function showChosen() {
  const names = chosen();
  const kept = fitting(names).length;
  const shown = new Set(allRows().filter((row) => !row.hidden).map((row) => row.dataset.run));
  const away = names.filter((name) => !shown.has(name)).length;
  const where = away ? `, ${said(away)} of them not shown` : "";
  const rest = kept < names.length ? ` A reload keeps the first ${said(kept)}.` : "";
  tell("chosen", names.length ? `${said(names.length)} chosen${where}.${rest}` : "");
  document.getElementById("untick").hidden = !names.length;
}

const state = (names) => ({ chosen: fitting(names), q: filter.value });

// Writes what is found and chosen into the address, and into the links that keep it.
function noteState() {
  const names = chosen();
  keepAddress(state(names));
  for (const link of document.querySelectorAll("#list thead a, #list .pages a, #news a")) {
    link.href = addressOf(link.href, state(names));
  }
  const untick = document.getElementById("untick");
  untick.href = addressOf(untick.href, state([]));
}

// Whether the server has left out rows that the words in the field would find.
function isPart() {
  const { words, pages } = list().dataset;
  return Boolean(pages) || !filter.value.toLowerCase().includes(words.toLowerCase());
}

let asked = 0;

async function readList() {
  const mine = ++asked;
  try {
    const fresh = (await fetchPage(location.href))?.getElementById("list");
    if (!fresh || mine !== asked) return;
    list().replaceWith(fresh);
    showRows();
    readSizes();
  } catch { /* the rows that are here stay filtered */ }
}

let typing;

if (search) {
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    keepAddress({ page: "" });
    showRows();
    noteState();
    if (isPart()) typing = setTimeout(readList, 200);
  });
  search.addEventListener("formdata", (event) => {
    event.formData.delete("chosen");
    for (const name of fitting(chosen())) event.formData.append("chosen", name);
  });
  document.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    showChosen();
    noteState();
  });
  showChosen();
}

// ----------------------------------------------------------------------- live changes

let asks = 0;
const answered = new WeakMap(); // row -> the latest question whose answer it shows

async function readAgain(rows) {
  const mine = ++asks;
  const address = addressOf(document.getElementById("runs").dataset.rows, { run: rows.map((row) => row.dataset.run) });
  try {
    const fresh = await fetchPage(address);
    if (fresh) rows.forEach((row) => changeRow(row, fresh, mine));
  } catch { /* the next look may be answered */ }
}

async function readEach(rows) {
  for (let at = 0; at < rows.length; at += 20) await readAgain(rows.slice(at, at + 20));
}

// Rows of running runs are read again, and change where they are.
async function readRunning() {
  const running = allRows().filter((row) => row.dataset.state === "running").slice(0, 20);
  if (running.length && !document.hidden) await readAgain(running);
  setTimeout(readRunning, 3000);
}

// Sizes of runs on a storage cost a request each: they come after the list.
function readSizes() {
  readEach(allRows().filter((row) => "unsized" in row.dataset));
}

function changeRow(row, fresh, mine) {
  if (answered.get(row) > mine) return; // it was on its way for longer than a later one
  answered.set(row, mine);
  const found = [...fresh.querySelectorAll("tr")].find((one) => one.dataset.run === row.dataset.run);
  if (!found) return; // the stream tells whether it is gone
  const { state, text } = found.dataset;
  const isChanged = row.dataset.text !== text;
  Object.assign(row.dataset, { state, text });
  [...row.cells].forEach((cell, at) => {
    const other = found.cells[at];
    if (at > 1 && cell.innerHTML !== other.innerHTML) cell.replaceChildren(...other.childNodes);
  });
  if (isChanged) showRows();
}

// Runs that are gone vanish; new ones are told, so that no row moves.
const newRuns = new Set();
let isOther = false; // the list has changed while nobody told

function offer() {
  const link = document.createElement("a");
  const many = newRuns.size;
  link.href = location.href;
  link.textContent = many ? (many === 1 ? "1 new run: show it" : `${said(many)} new runs: show them`) : "The list has changed: show it";
  const offered = many || isOther ? [link] : [];
  news.replaceChildren(...offered);
  announce(document.getElementById("news-told"), offered.length ? link.textContent : "");
}

function showTotal(total) {
  news.dataset.total = total;
  document.title = `${runs(total)} · Shoal`;
  showRows();
}

function changeList({ gone, new: added, changed }) {
  const away = new Set(gone);
  for (const row of allRows()) if (away.has(row.dataset.run)) row.remove();
  for (const hidden of document.querySelectorAll('#choose input[type="hidden"][name="run"]')) {
    if (away.has(hidden.value)) hidden.remove();
  }
  for (const name of gone) newRuns.delete(name);
  for (const name of added) newRuns.add(name);
  if (gone.length || added.length) {
    showTotal(Number(news.dataset.total) - gone.length + added.length);
    if (list()) noteState();
    offer();
  }
  readChanged(changed);
}

function readChanged(names) {
  const changed = new Set(names);
  readEach(allRows().filter((row) => changed.has(row.dataset.run)));
}

const address = () => addressOf(news.dataset.events, { seen: news.dataset.seen });
streamOf(address, {
  list: (event) => {
    news.dataset.seen = event.lastEventId;
    changeList(JSON.parse(event.data));
  },
  begun: (event) => {
    const { count: total, changed } = JSON.parse(event.data);
    isOther = total !== null && total !== Number(news.dataset.total);
    offer();
    readChanged(changed);
    news.dataset.seen = event.lastEventId;
    news.dataset.begun = "yes";
  },
}).connect();
keepAddress({ removed: "" }); // it is said once
if (list()) {
  setTimeout(readRunning, 3000);
  readSizes();
}
