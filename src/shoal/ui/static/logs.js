// Logs: what is found is marked in place, and new lines are followed at the end only.

const form = document.getElementById("log-form");
const MOST_LINES = 5000;
const MOST_HITS = 10000;
let hits = [];
let isAll = true;
let current = -1;
let waiting = 0;
let asked = "";
let following = null;

const words = () => form.elements.q.value;
const box = () => document.getElementById("log-box");
const lines = () => document.getElementById("lines");
const part = () => document.getElementById("log-page");

function change(values) {
  const address = new URL(location.href);
  address.searchParams.delete("list");
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}

function mark(line) {
  const place = line.querySelector("span");
  const text = place.textContent;
  const wanted = words().toLowerCase();
  const lower = text.toLowerCase();
  line.classList.remove("hit", "current");
  if (!wanted || !lower.includes(wanted) || lower.length !== text.length) {
    if (place.firstElementChild) place.textContent = text;
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
  place.replaceChildren(...found, text.slice(from));
}

function markAll() {
  for (const line of lines().children) mark(line);
}

function tell() {
  const most = `${hits.length.toLocaleString()}${isAll ? "" : " or more"}`;
  const text = !words() ? "" : !hits.length ? (isAll ? "not found" : "searching…") : current < 0 ? `${most} found` : `${(current + 1).toLocaleString()} of ${most}`;
  document.getElementById("hits").textContent = text;
}

async function find() {
  const wanted = asked = words();
  current = -1;
  change({ q: wanted });
  markAll();
  hits = [];
  let next = wanted ? "0:0" : "";
  isAll = !next;
  tell();
  while (next && hits.length < MOST_HITS) {
    const address = new URL(form.dataset.found, location.href);
    address.searchParams.set("q", wanted);
    address.searchParams.set("from", next);
    if (form.elements.rank.value) address.searchParams.set("rank", form.elements.rank.value);
    try {
      const answer = await fetch(address);
      if (asked !== wanted || !answer.ok) return;
      const found = await answer.json();
      if (asked !== wanted) return;
      hits.push(...found.lines);
      next = found.next;
    } catch { return; }
    isAll = !next;
    tell();
  }
}

async function load(values) {
  const address = new URL(form.dataset.lines, location.href);
  for (const [name, value] of Object.entries(values)) if (value !== "") address.searchParams.set(name, value);
  change({ rank: values.rank, at: values.at ?? "" });
  address.searchParams.set("part", "lines");
  const answer = await fetch(address);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  part().replaceWith(fresh.getElementById("log-page"));
  document.dispatchEvent(new CustomEvent("shoal-times", { detail: part() }));
  following?.abort();
  box().classList.toggle("only", form.elements.only.checked);
  markAll();
}

function lineOf(hit) {
  const exact = document.getElementById(`w${hit.rank}-${hit.offset}`);
  if (exact) return exact;
  const later = [...lines().children].filter((line) => Number(line.dataset.rank) === hit.rank);
  if (!later.length || Number(later[0].dataset.offset) > hit.offset) return null;
  return later.find((line) => Number(line.dataset.offset) >= hit.offset) || null;
}

async function go(step) {
  if (!hits.length) return;
  current = (current + step + hits.length) % hits.length;
  if (current < 0) current = hits.length - 1;
  const hit = hits[current];
  if (!lineOf(hit)) await load({ rank: String(hit.rank), at: String(hit.offset) });
  tell();
  const line = lineOf(hit);
  if (!line) return;
  for (const other of lines().querySelectorAll(".current")) other.classList.remove("current");
  line.classList.add("current");
  line.scrollIntoView({ block: "center" });
}

// ---------------------------------------------------------------- following

function isAtEnd() {
  const place = box();
  return place.scrollHeight - place.scrollTop - place.clientHeight < 40;
}

function add(found) {
  const wasAtEnd = isAtEnd();
  for (const one of found) {
    const line = document.createElement("li");
    line.id = `w${one.rank}-${one.offset}`;
    line.dataset.rank = one.rank;
    line.dataset.offset = one.offset;
    if (one.bad) line.className = "bad";
    const link = document.createElement("a");
    const address = new URL(form.dataset.lines, location.href);
    address.searchParams.set("rank", one.rank);
    address.searchParams.set("at", one.offset);
    link.href = address;
    link.textContent = one.rank;
    link.setAttribute("aria-label", `Link to this line of worker ${one.rank}`);
    const text = document.createElement("span");
    text.textContent = one.text;
    line.append(link, " ");
    if (one.time) {
      const time = document.createElement("time");
      time.dateTime = one.time;
      time.textContent = one.time.slice(11, 19);
      line.append(time, " ");
    }
    line.append(text);
    document.dispatchEvent(new CustomEvent("shoal-times", { detail: line }));
    mark(line);
    lines().append(line);
  }
  while (lines().children.length > MOST_LINES) lines().firstElementChild.remove();
  if (wasAtEnd) box().scrollTop = box().scrollHeight;
}

async function follow() {
  const told = document.getElementById("following");
  if (part().dataset.end && !document.hidden) {
    const ends = JSON.parse(part().dataset.ends);
    const address = new URL(form.dataset.new, location.href);
    address.searchParams.set("ends", Object.entries(ends).map(([rank, end]) => `${rank}:${end}`).join(","));
    if (form.elements.rank.value) address.searchParams.set("rank", form.elements.rank.value);
    // The answer comes with the next lines.
    address.searchParams.set("wait", "yes");
    const own = part();
    following = new AbortController();
    const { signal } = following;
    try {
      const answer = await fetch(address, { signal });
      if (answer.status === 404) { told.textContent = "This run was removed."; return; }
      const found = await answer.json();
      if (part() === own) {
        own.dataset.ends = JSON.stringify(found.ends);
        add(found.lines);
        told.textContent = found.is_over ? "The run has ended." : isAtEnd() ? "New lines appear here." : "New lines are added below; they are followed at the end.";
        if (found.is_over && !found.lines.length) return;
      }
      setTimeout(follow, 100);
      return;
    } catch { if (!signal.aborted) told.textContent = "Reconnecting…"; }
  }
  setTimeout(follow, 1000);
}

if (form) {
  form.querySelector("button").hidden = true;
  document.getElementById("found")?.remove();
  form.elements.q.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 150); });
  form.elements.q.addEventListener("keydown", async (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(waiting);
    if (asked !== words() || (words() && !hits.length)) await find();
    await go(event.shiftKey ? -1 : 1);
  });
  form.elements.only.addEventListener("change", () => {
    box().classList.toggle("only", form.elements.only.checked);
    change({ only: form.elements.only.checked ? "1" : "" });
  });
  form.elements.rank.addEventListener("change", async () => {
    await load({ rank: form.elements.rank.value });
    box().scrollTop = box().scrollHeight;
    await find();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  if (words()) find();
  if (part().dataset.end) box().scrollTop = box().scrollHeight;
  setTimeout(follow, 1000);
}
