// What each page does by itself: theme, times in the reader's zone, live changes, keys.
// Everything here is a convenience: each page works without it.

import { addressOf, localTimes, parsed, streamOf } from "./answers.js";
import { announce } from "./regions.js";

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

localTimes(document);

// Commands to copy; without a safe connection browsers have no clipboard for pages.
document.documentElement.dataset.script = "yes";
document.addEventListener("click", async (event) => {
  const press = event.target.closest(".copy");
  if (!press) return;
  const code = press.parentElement.querySelector("code");
  try { await navigator.clipboard.writeText(code.textContent); } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  press.textContent = "Copied";
  setTimeout(() => { press.textContent = "Copy"; }, 2000);
});

// A run: one stream brings the parts and charts that have changed.
const live = document.getElementById("live");
const later = new Map(); // parts that would take the focus away from what is replaced
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
  const [part] = parsed(text).body.children;
  if (!keepsFocus(old, part, document.activeElement)) { later.set(name, text); return; }
  later.delete(name);
  // One that is new is as the server sends it: what went wrong is open.
  const open = new Map([...old.querySelectorAll("details")].map((details) => [summaryOf(details), details.open]));
  for (const details of part.querySelectorAll("details")) {
    if (open.has(summaryOf(details))) details.open = open.get(summaryOf(details));
  }
  if (part.dataset.title) document.title = part.dataset.title;
  change(old, part);
}

function summaryOf(details) { return details.querySelector("summary").textContent; }

if (live) {
  const address = () => addressOf(live.dataset.events, { ...Object.fromEntries(new URLSearchParams(location.search)), seen });
  const take = (event) => {
    seen = event.lastEventId;
    const { parts, series } = JSON.parse(event.data);
    if (series) document.dispatchEvent(new CustomEvent("shoal-series", { detail: series }));
    for (const [name, text] of Object.entries(parts)) changePart(name, text);
  };
  const remove = () => {
    isRemoved = true;
    stream.disconnect();
    announce(document.getElementById("link-state"), "This run was removed.");
  };
  const stream = streamOf(address, { change: take, removed: remove }, () => !isDrawing && !isRemoved);
  const goOn = () => { isDrawing = false; stream.connect(); };
  let wasAsked = false;
  document.addEventListener("shoal-ask", () => { wasAsked = isDrawing = true; stream.disconnect(); });
  // Without charts, as their script has failed, the rest of the page is live.
  addEventListener("load", () => { if (!wasAsked) goOn(); });
  document.addEventListener("shoal-asked", goOn);
  live.addEventListener("focusout", () => setTimeout(() => {
    for (const [name, text] of [...later]) changePart(name, text);
  }));
  stream.connect();
}

// A form whose fields are checked as they are left, by the code of the command line.
const fresh = document.getElementById("new");

const checked = new WeakMap(); // field -> its value when it was checked last

// What a press has left is checked at once, and its error takes or gives a line: it is
// shown after the press, as a button that moves under the pointer is not clicked.
let released = Promise.resolve();
addEventListener("pointerdown", () => {
  released = new Promise((go) => {
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => setTimeout(go), { once: true });
  });
});

async function check(field) {
  const { value } = field;
  if (checked.get(field) === value) return;
  checked.set(field, value);
  // A parameter is checked together with the others of its strategy.
  const name = field.name.startsWith("p.") ? "strategy" : field.name;
  const others = name === "strategy" ? [...fresh.querySelectorAll("fieldset:not([hidden]) [name]")] : [];
  const values = Object.fromEntries(others.map((one) => [one.name, one.value]));
  const address = addressOf(fresh.dataset.check, { ...values, field: name, value: fresh.elements[name].value });
  const told = document.getElementById(`${field.id}-error`);
  if (!told) return;
  try {
    const answer = await fetch(address);
    if (!answer.ok) return;
    const { error } = await answer.json();
    await released;
    if (checked.get(field) !== value) return; // a later value is asked for
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
    const other = parsed(await answer.text());
    const hadFocus = main.contains(document.activeElement);
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
  const find = document.getElementById("q");
  if (event.key === "/" && find) { event.preventDefault(); find.focus(); }
});
