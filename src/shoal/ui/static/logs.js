// Logs: what is found is marked in place, or shown alone; new lines are followed at the
// end only.

import { addressOf, fetchPage, keepAddress, parsed } from "./answers.js";
import { announce } from "./regions.js";

const form = document.getElementById("log-form");
const MOST_LINES = 5000;
const MOST_HITS = 10000;
let hits = [];
let isAll = true;
let current = -1;
let waiting = 0;
let asked = "";
let searches = 0;
let loads = 0;
let following = null;

const words = () => form.elements.q.value;
const isOnly = () => form.elements.only.checked && words() !== "";
const box = () => document.getElementById("log-box");
const lines = () => document.getElementById("lines");
const part = () => document.getElementById("log-page");
const place = (hit) => `${hit.rank}:${hit.offset}`;
// The search knows capitals of ASCII alone.
const folded = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

const change = (values) => keepAddress({ list: "", from: "", ...values });

function mark(line) {
  const held = line.querySelector("span");
  const text = held.textContent;
  const wanted = folded(words());
  const lower = folded(text);
  line.classList.remove("hit", "current");
  if (!wanted || !lower.includes(wanted)) {
    if (held.firstElementChild) held.textContent = text;
    return;
  }
  line.classList.add("hit");
  const found = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    const piece = document.createElement("mark");
    piece.textContent = text.slice(at, at + wanted.length);
    found.push(text.slice(from, at), piece);
    from = at + wanted.length;
  }
  held.replaceChildren(...found, text.slice(from));
}

function markAll() {
  for (const line of lines().children) mark(line);
  showCurrent();
}

function tell() {
  const most = `${hits.length.toLocaleString()}${isAll ? "" : " or more"}`;
  const text = !words() ? "" : !hits.length ? (isAll ? "not found" : "searching…") : current < 0 ? `${most} found` : `${(current + 1).toLocaleString()} of ${most}`;
  document.getElementById("hits").textContent = text;
  announce(document.getElementById("hits-told"), text);
}

// Searches all logs, or one; `hit` is the place of the line that is current again.
async function find(hit = "") {
  const own = ++searches;
  const wanted = asked = words();
  current = -1;
  change({ q: wanted, hit });
  hits = [];
  let next = wanted ? "0:0" : "";
  isAll = !next;
  tell();
  markAll();
  while (next && hits.length < MOST_HITS) {
    const address = addressOf(form.dataset.found, { q: wanted, from: next, rank: form.elements.rank.value });
    try {
      const answer = await fetch(address);
      if (own !== searches || !answer.ok) return;
      const found = await answer.json();
      if (own !== searches) return;
      hits.push(...found.lines);
      next = found.next;
    } catch { return; }
    isAll = !next;
    if (hit && current < 0) {
      current = hits.findIndex((one) => place(one) === hit);
      if (current >= 0) await reach(hits[current]);
    }
    tell();
  }
}

async function fetchLines(values) {
  const found = await fetchPage(addressOf(form.dataset.lines, { ...values, part: "lines" }));
  return found && found.getElementById("log-page");
}

// Shows the lines that are found, those at a place, or the end.
async function load(at = "") {
  const own = ++loads;
  const rank = form.elements.rank.value;
  const fresh = await fetchLines(isOnly() ? { rank, q: words(), only: "1" } : { rank, q: words(), at });
  if (!fresh || own !== loads) return;
  part().replaceWith(fresh);
  following?.abort();
  markAll();
  if (part().dataset.end) box().scrollTop = box().scrollHeight;
}

// Adds the next lines that are found; whether there were any.
async function more() {
  const link = document.getElementById("more");
  if (!link) return false;
  const own = part();
  const fresh = await fetchLines(Object.fromEntries(new URL(link.href).searchParams));
  if (!fresh || own !== part() || !link.isConnected) return false;
  for (const line of [...fresh.querySelector("#lines").children]) { lines().append(line); mark(line); }
  const next = fresh.querySelector("#more");
  if (next) link.href = next.href;
  else link.parentElement.remove();
  return true;
}

const lineOf = (hit) => document.getElementById(`w${place(hit).replace(":", "-")}`);

function showCurrent() {
  for (const other of lines().querySelectorAll(".current")) other.classList.remove("current");
  const line = current >= 0 ? lineOf(hits[current]) : null;
  if (!line) return;
  line.classList.add("current");
  (line.querySelector("mark") || line).scrollIntoView({ block: "center" });
}

async function reach(hit) {
  if (!lineOf(hit) && !isOnly()) await load(place(hit));
  while (!lineOf(hit) && isOnly() && await more());
  showCurrent();
}

async function go(step) {
  if (!hits.length) return;
  current = current < 0 && step < 0 ? hits.length - 1 : (current + step + hits.length) % hits.length;
  const hit = hits[current];
  change({ hit: place(hit), at: "" });
  tell();
  await reach(hit);
}

async function showOnly() {
  const hit = current >= 0 ? place(hits[current]) : "";
  change({ only: form.elements.only.checked ? "1" : "" });
  await load(hit);
  if (hit) await reach(hits[current]);
}

async function search() {
  current = -1;
  const was = part();
  // Lines that are shown alone are those of other words now.
  if (isOnly() || was.dataset.found) await load();
  await find();
}

// ---------------------------------------------------------------- following

function isAtEnd() {
  const place = box();
  return place.scrollHeight - place.scrollTop - place.clientHeight < 40;
}

function add(text) {
  const wasAtEnd = isAtEnd();
  for (const line of [...parsed(text).querySelectorAll("li")]) { lines().append(line); mark(line); }
  while (lines().children.length > MOST_LINES) lines().firstElementChild.remove();
  if (wasAtEnd) box().scrollTop = box().scrollHeight;
}

async function follow() {
  const region = document.getElementById("following");
  if (part().dataset.end && !document.hidden) {
    const ends = Object.entries(JSON.parse(part().dataset.ends)).map(([rank, end]) => `${rank}:${end}`).join(",");
    // The answer comes with the next lines.
    const address = addressOf(form.dataset.new, { ends, rank: form.elements.rank.value, wait: "yes" });
    const own = part();
    following = new AbortController();
    const { signal } = following;
    try {
      const answer = await fetch(address, { signal });
      if (answer.status === 404) { announce(region, "This run was removed."); return; }
      const found = await answer.json();
      if (part() === own) {
        own.dataset.ends = JSON.stringify(found.ends);
        add(found.lines);
        announce(region, found.is_over ? "The run has ended." : isAtEnd() ? "New lines appear here." : "New lines are added below; they are followed at the end.");
        if (found.is_over && !found.lines.length) return;
      }
      setTimeout(follow, 100);
      return;
    } catch { if (!signal.aborted) announce(region, "Reconnecting…"); }
  } else if (!part().dataset.end) announce(region, "");
  setTimeout(follow, 1000);
}

if (form) {
  form.querySelector("button").hidden = true;
  document.getElementById("found")?.remove();
  form.elements.q.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 150); });
  form.elements.q.addEventListener("keydown", async (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(waiting);
    if (asked !== words() || (words() && !hits.length)) await search();
    await go(event.shiftKey ? -1 : 1);
  });
  form.elements.only.addEventListener("change", showOnly);
  form.elements.rank.addEventListener("change", async () => {
    current = -1;
    change({ rank: form.elements.rank.value, at: "", hit: "" });
    await load();
    await find();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    if (event.target.id !== "more") return;
    event.preventDefault();
    more();
  });
  if (words()) find(new URLSearchParams(location.search).get("hit") || "");
  if (part().dataset.end) box().scrollTop = box().scrollHeight;
  setTimeout(follow, 1000);
}
